//! Libraries that are opened at run time, and the functions in them.

use std::ffi::OsString;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use super::places::Wanted;

/// Why there is no library, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// No place has it.
    #[error("no {name} found; tried {}; name one with {flag}", tried.join("; "))]
    NotFound {
        /// The library's file name.
        name: &'static str,
        /// How to name one.
        flag: &'static str,
        /// Where it was looked for, and what the dynamic linker said.
        tried: Vec<String>,
    },
    /// It is there, a function is not.
    #[error("{} has no function {symbol}: the wrong library, or too old", path.display())]
    NoSymbol {
        /// The library.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// It is there and too old.
    #[error("{} is version {found}; {least} is needed {what}", path.display())]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The version that is needed.
        least: String,
        /// What for.
        what: &'static str,
    },
}

/// A library that is open. It is never closed: NVIDIA's leave threads and exit handlers behind.
#[derive(Debug)]
pub struct Loaded {
    library: ManuallyDrop<libloading::Library>,
    /// The file that was opened, as it was named to the dynamic linker.
    pub path: PathBuf,
}

impl Loaded {
    /// Opens the first that there is. `path` names a file, or a folder with it, and nothing else is tried then: who names
    /// one wants that one.
    ///
    /// # Errors
    /// [`LoadError::NotFound`].
    pub fn open(wanted: &Wanted, path: Option<&Path>) -> Result<Loaded, LoadError> {
        let places = match path {
            Some(path) if path.is_dir() => wanted.in_folder(path),
            Some(path) => vec![path.to_owned()],
            None => wanted.places(|name| std::env::var_os(name)),
        };
        Loaded::first(wanted, places)
    }

    fn first(wanted: &Wanted, places: Vec<PathBuf>) -> Result<Loaded, LoadError> {
        let mut tried = Vec::new();
        for path in places {
            // SAFETY: a library of NVIDIA's, or one that the user put in its place; its initializers run as they would in
            // any program that is linked to it.
            match unsafe { libloading::Library::new(OsString::from(&path)) } {
                Ok(library) => {
                    let library = ManuallyDrop::new(library);
                    return Ok(Loaded { library, path });
                }
                Err(error) => tried.push(told(&path, &error)),
            }
        }
        Err(LoadError::NotFound {
            name: wanted.name,
            flag: wanted.flag,
            tried,
        })
    }

    /// A function, if the library has it.
    ///
    /// # Safety
    /// `T` is the type of a function pointer with the signature that the library's header gives `symbol`.
    pub unsafe fn function<T: Copy>(&self, symbol: &str) -> Option<T> {
        // SAFETY: as promised by the caller.
        let found = unsafe { self.library.get::<T>(symbol.as_bytes()) };
        found.ok().map(|function| *function)
    }
}

/// What the linker said, with the path once.
fn told(path: &Path, error: &libloading::Error) -> String {
    let text = error.to_string();
    let path = path.display().to_string();
    if text.starts_with(&path) {
        text
    } else {
        format!("{path}: {text}")
    }
}

/// A table of functions of one library: `functions! { #[allow(dead_code, reason = "it is not found")] Table { create: "cuInit": fn(u32) -> i32, .. } }`. Those in
/// `optional { .. }` behind it came with a later version and may be missing.
macro_rules! functions {
    (
        $(#[$meta:meta])*
        $table:ident {
            $($name:ident: $symbol:literal: fn($($argument:ty),* $(,)?) -> $result:ty,)*
        }
        $(optional {
            $($later:ident: $later_symbol:literal: fn($($later_argument:ty),*) -> $later_result:ty,)*
        })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "each is the function of the library that it is named after")]
        pub(crate) struct $table {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            $($(pub $later: Option<unsafe extern "C" fn($($later_argument),*) -> $later_result>,)*)?
        }

        impl $table {
            /// Finds all of them.
            pub(crate) fn find(library: &$crate::cuda::Loaded) -> Result<$table, $crate::cuda::LoadError> {
                let missing = |symbol| $crate::cuda::LoadError::NoSymbol { path: library.path.clone(), symbol };
                Ok($table {
                    $(
                        // SAFETY: the signature is that of the library's header.
                        $name: unsafe { library.function($symbol) }.ok_or_else(|| missing($symbol))?,
                    )*
                    $($(
                        // SAFETY: as above.
                        $later: unsafe { library.function($later_symbol) },
                    )*)?
                })
            }
        }
    };
}
pub(crate) use functions;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::places::CUDA;

    #[test]
    fn who_names_a_library_gets_that_or_an_error() {
        let error = Loaded::open(&CUDA, Some(Path::new("/nonexistent/libcuda.so"))).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("no libcuda.so.1 found") && text.contains("/nonexistent/libcuda.so"),
            "{text}"
        );
        assert!(text.contains("name one with PACELINE_CUDA_LIB"), "{text}");
        assert_eq!(text.matches("/nonexistent/libcuda.so").count(), 1, "{text}");
    }

    #[test]
    fn a_library_without_the_function_names_it() {
        functions! { #[allow(dead_code, reason = "it is not found")] Table { absent: "paceline_has_no_such_function": fn() -> i32, } }
        let libc = Loaded::open(&CUDA, Some(Path::new("libc.so.6"))).unwrap();
        let error = Table::find(&libc).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("libc.so.6 has no function paceline_has_no_such_function")
        );
        functions! {
            Lenient { pid: "getpid": fn() -> i32, }
            optional { absent: "paceline_has_no_such_function": fn() -> i32, }
        }
        let table = Lenient::find(&libc).unwrap();
        assert!(table.absent.is_none());
        // SAFETY: getpid takes nothing.
        assert_eq!(unsafe { (table.pid)() }, std::process::id() as i32);
    }
}
