//! Loads libraries and their functions at run time.

use std::ffi::OsString;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use super::places::Wanted;

/// Why a library or function is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The library was not found.
    #[error("no {name} found; tried {}; name one with {flag}", tried.join("; "))]
    NotFound {
        /// The library's file name.
        name: &'static str,
        /// The flag that sets its path.
        flag: &'static str,
        /// The paths that were tried, with the dynamic linker's errors.
        tried: Vec<String>,
    },
    /// The library lacks a function.
    #[error("{} has no function {symbol}: the wrong library, or too old", path.display())]
    NoSymbol {
        /// The library.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// The library is too old.
    #[error("{} is version {found}; {least} is needed {what}", path.display())]
    TooOld {
        /// The library.
        path: PathBuf,
        /// The library's version.
        found: String,
        /// The required version.
        least: String,
        /// The feature that requires it.
        what: &'static str,
    },
}

/// An open library. It is never closed, because NVIDIA's libraries leave threads and exit handlers behind.
#[derive(Debug)]
pub struct Loaded {
    library: ManuallyDrop<libloading::Library>,
    /// The opened file, as passed to the dynamic linker.
    pub path: PathBuf,
}

impl Loaded {
    /// Opens the first library found. If `path` is given, only that file is tried, or the library's files in that
    /// folder.
    ///
    /// # Errors
    /// Returns [`LoadError::NotFound`] if no library could be opened.
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
            // SAFETY: a library from NVIDIA, or the user's replacement; its initializers run as in any program that is
            // linked to it.
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

    /// Returns a function, if the library has it.
    ///
    /// # Safety
    /// `T` must be a function pointer type with the signature of `symbol` in the library's header.
    pub unsafe fn function<T: Copy>(&self, symbol: &str) -> Option<T> {
        // SAFETY: guaranteed by the caller.
        let found = unsafe { self.library.get::<T>(symbol.as_bytes()) };
        found.ok().map(|function| *function)
    }
}

/// Returns the linker's error, with the path only once.
fn told(path: &Path, error: &libloading::Error) -> String {
    let text = error.to_string();
    let path = path.display().to_string();
    if text.starts_with(&path) {
        text
    } else {
        format!("{path}: {text}")
    }
}

/// Defines a table of functions of one library: `functions! { Table { create: "cuInit": fn(u32) -> i32, .. } }`.
/// Functions in a following `optional { .. }` may be missing in older versions.
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
            /// Loads all functions.
            pub(crate) fn find(library: &$crate::cuda::Loaded) -> Result<$table, $crate::cuda::LoadError> {
                let missing = |symbol| $crate::cuda::LoadError::NoSymbol { path: library.path.clone(), symbol };
                Ok($table {
                    $(
                        // SAFETY: the signature is from the library's header.
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
        // SAFETY: getpid has no arguments.
        assert_eq!(unsafe { (table.pid)() }, std::process::id() as i32);
    }
}
