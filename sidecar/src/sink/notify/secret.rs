//! Secrets that are given by reference, as `env:NAME` or `file:PATH`. A secret is read when it is used, and never
//! printed.

use std::fmt;
use std::fs;
use std::path::PathBuf;

/// Maximum size of a secret file.
const MOST: usize = 16 << 10;

/// Location of a secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// In an environment variable of this process.
    Env(String),
    /// In a file; trailing white space is ignored.
    File(PathBuf),
}

impl Secret {
    /// Parses `env:NAME` or `file:PATH`.
    pub fn of(text: &str) -> Option<Secret> {
        match text.split_once(':')? {
            // Reject an invalid name, because it may be the secret itself, and names are shown in messages.
            ("env", name) if is_name(name) => Some(Secret::Env(name.to_owned())),
            ("file", path) if !path.is_empty() => Some(Secret::File(path.into())),
            _ => None,
        }
    }

    /// Reads the secret.
    ///
    /// # Errors
    /// What the problem is, without the secret.
    pub fn read(&self) -> Result<String, String> {
        let text = match self {
            Secret::Env(name) => {
                std::env::var(name).map_err(|_| format!("the variable {name} is not set"))?
            }
            Secret::File(path) => {
                fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?
            }
        };
        let text = text.trim();
        if text.is_empty() || text.len() > MOST {
            return Err(format!("{self:?} is empty or too long"));
        }
        Ok(text.to_owned())
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Shows the location, not the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Secret::Env(name) => write!(f, "env:{name}"),
            Secret::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}
