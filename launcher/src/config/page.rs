//! Settings of the job's page: its address, access to it, and the detail of the metrics. They are parsed here and
//! passed as flags to the sidecars, one of which serves the page.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use paceline_sidecar::sink::http::{HttpOptions, Place, check_name};
use paceline_sidecar::sink::metrics::{Compat, Detail, MetricsOptions};

use super::raw::{Raw, Said};
use super::settings::{key, name, wrong};
use crate::output::Usage;

/// The page's command-line options, unparsed.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PageArgs {
    /// Listen address of the live page and /metrics: an address, an interface (eth0:9810) or a name (localhost:9810)
    /// of the aggregator's node [default: 127.0.0.1, any free port].
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) http: Option<String>,
    /// File with the access token of the page, 32 bytes or more [default: none].
    #[arg(long, value_name = "FILE")]
    pub(crate) http_token_file: Option<String>,
    /// Host names that the page accepts in requests, separated by commas: NAME, *.DOMAIN, or * for any [default: this
    /// machine's name, localhost and addresses].
    #[arg(long, value_name = "NAMES")]
    pub(crate) http_hosts: Option<String>,
    /// TLS certificate chain of the page (PEM); needs --http-key [default: no TLS].
    #[arg(long, value_name = "FILE")]
    pub(crate) http_cert: Option<String>,
    /// Private key of the certificate (PEM).
    #[arg(long, value_name = "FILE")]
    pub(crate) http_key: Option<String>,
    /// Level of detail of /metrics: auto, summary, rank or gpu [default: auto, gpu up to 512 ranks and summary
    /// above].
    #[arg(long, value_name = "DETAIL")]
    pub(crate) metrics: Option<String>,
    /// Also expose the readings in /metrics under another exporter's names: dcgm [default: none].
    #[arg(long, value_name = "EXPORTER")]
    pub(crate) metrics_compat: Option<String>,
}

/// The parsed settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PageSettings {
    /// Requested listen address.
    pub(crate) http: Option<Place>,
    /// File with the access token.
    pub(crate) token_file: Option<PathBuf>,
    /// Files with the certificates and with their private key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    /// Accepted host names.
    hosts: Option<String>,
    metrics: Option<String>,
    metrics_compat: Option<String>,
}

impl PageSettings {
    /// Parses the settings, and reads the files that they name. With a bad token or certificate, the page would not be
    /// served and the job would run unmonitored, so the error must come before the start.
    pub(super) fn check(raw: &Raw) -> Result<PageSettings, Usage> {
        for key in ["http_token_file", "http_cert", "http_key"] {
            said(raw, key, name)?;
        }
        Ok(PageSettings {
            http: said(raw, "http", |text| {
                text.parse::<Place>().map_err(|problem| problem.to_string())
            })?,
            token_file: said(raw, "http_token_file", |path| key(path).map(|()| path.into()))?,
            tls: tls(raw)?,
            hosts: said(raw, "http_hosts", hosts)?,
            metrics: said(raw, "metrics", one_of::<Detail>)?,
            metrics_compat: said(raw, "metrics_compat", one_of::<Compat>)?,
        })
    }

    /// Returns the names and values of the sidecar's flags.
    pub(crate) fn flags(&self) -> Vec<(&'static str, OsString)> {
        let tls = self.tls.as_ref();
        let all = [
            ("http", self.http.as_ref().map(|place| place.to_string().into())),
            ("http-token-file", self.token_file.clone().map(OsString::from)),
            ("http-cert", tls.map(|(cert, _)| cert.into())),
            ("http-key", tls.map(|(_, key)| key.into())),
            ("http-hosts", self.hosts.clone().map(OsString::from)),
            ("metrics", self.metrics.clone().map(OsString::from)),
            ("metrics-compat", self.metrics_compat.clone().map(OsString::from)),
        ];
        all.into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }

    /// Returns a warning to print before the job starts if everyone could open the page.
    pub(crate) fn warning(&self) -> Option<String> {
        let place = self.http.as_ref().filter(|place| place.is_everywhere())?;
        self.token_file.is_none().then(|| {
            format!(
                "--http {place}: on all networks of the node the page needs a token; without one it is served on \
                 127.0.0.1 only; name one network (--http eth0:{0}), or make a token (umask 077; head -c 32 \
                 /dev/urandom | \
                 base64 > ~/.config/paceline/http-token) and add --http-token-file ~/.config/paceline/http-token",
                place.port()
            )
        })
    }

    /// Returns the scheme of the page's URL.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// Returns the parsed value of `key`, if it is set.
fn said<T>(raw: &Raw, key: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>, Usage> {
    let Some(said) = raw.get(key) else { return Ok(None) };
    parse(&said.text).map(Some).map_err(|why| wrong(key, said, &why))
}

/// Checks a list of host names, separated by commas.
fn hosts(text: &str) -> Result<String, String> {
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    names.iter().try_for_each(|name| check_name(name))?;
    Ok(names.join(","))
}

/// Checks that the sidecar accepts this word.
fn one_of<T: ValueEnum>(text: &str) -> Result<String, String> {
    T::from_str(text, false).map(|_| text.to_owned()).map_err(|_| {
        let words = T::value_variants().iter().filter_map(T::to_possible_value);
        let words: Vec<String> = words.map(|word| word.get_name().to_owned()).collect();
        format!("must be {}", words.join(" or "))
    })
}

fn tls(raw: &Raw) -> Result<Option<(PathBuf, PathBuf)>, Usage> {
    let alone = |has: &str, said: &Said, wants: &str| Err(wrong(has, said, &format!("also needs {wants}")));
    let (cert, key) = match (raw.get("http_cert"), raw.get("http_key")) {
        (Some(cert), Some(key)) => (cert, key),
        (Some(cert), None) => return alone("http_cert", cert, "http_key, its private key (PEM)"),
        (None, Some(key)) => return alone("http_key", key, "http_cert, its certificates (PEM)"),
        (None, None) => return Ok(None),
    };
    let paths = (PathBuf::from(&cert.text), PathBuf::from(&key.text));
    let options = HttpOptions {
        http: Place::loopback(),
        http_cert: Some(paths.0.clone()),
        http_key: Some(paths.1.clone()),
        http_token_file: None,
        http_hosts: Vec::new(),
        metrics: MetricsOptions::default(),
    };
    match options.read() {
        Ok(_) => Ok(Some(paths)),
        Err(problem) => Err(wrong("http_cert", cert, &format!("{problem:#}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cli::SettingArgs;
    use crate::config::raw::{Surroundings, gather};

    fn check(page: PageArgs) -> Result<PageSettings, String> {
        let args = SettingArgs {
            page,
            ..SettingArgs::default()
        };
        let around = Surroundings {
            variable: Box::new(|_| None),
            files: Vec::new(),
            left_out: Vec::new(),
        };
        let raw = gather(&args, &around).map_err(|usage| usage.0)?;
        PageSettings::check(&raw).map_err(|usage| usage.0)
    }

    #[test]
    fn what_is_typed_is_what_the_sidecar_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        let token = token.to_str().unwrap().to_owned();
        let page = check(PageArgs {
            http: Some("eth0:9810".into()),
            http_token_file: Some(token.clone()),
            metrics: Some("rank".into()),
            metrics_compat: Some("dcgm".into()),
            http_hosts: Some("a.example, *.b".into()),
            ..PageArgs::default()
        })
        .unwrap();
        let told: Vec<String> = page
            .flags()
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
            .collect();
        assert_eq!(
            told,
            [
                "http=eth0:9810",
                &format!("http-token-file={token}"),
                "http-hosts=a.example,*.b",
                "metrics=rank",
                "metrics-compat=dcgm"
            ]
        );
        assert_eq!(page.scheme(), "http");
        assert!(check(PageArgs::default()).unwrap().flags().is_empty());
    }

    #[test]
    fn a_page_for_everybody_is_warned_of_with_what_to_do() {
        let page = |http: &str| {
            let args = PageArgs {
                http: Some(http.into()),
                ..PageArgs::default()
            };
            check(args).unwrap()
        };
        let warning = page("0.0.0.0:9811").warning().unwrap();
        for part in [
            "0.0.0.0:9811",
            "--http eth0:9811",
            "--http-token-file",
            "127.0.0.1 only",
        ] {
            assert!(warning.contains(part), "{part} in {warning}");
        }
        assert!(page("[::]:0").warning().is_some());
        assert!(page("localhost:9811").warning().is_none() && page("eth0:1").warning().is_none());
    }

    #[test]
    fn what_would_keep_the_sidecar_from_starting_is_told_before() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        fs::write(&empty, "").unwrap();
        let path = || Some(empty.to_str().unwrap().to_owned());
        let wrong = |page: PageArgs| check(page).unwrap_err();
        let metrics = wrong(PageArgs {
            metrics: Some("everything".into()),
            ..PageArgs::default()
        });
        assert_eq!(
            metrics,
            "--metrics: metrics = \"everything\": must be auto or summary or rank or gpu"
        );
        let token = wrong(PageArgs {
            http_token_file: path(),
            ..PageArgs::default()
        });
        assert!(token.starts_with("--http-token-file: "), "{token}");
        let hosts = wrong(PageArgs {
            http_hosts: Some("a:80".into()),
            ..PageArgs::default()
        });
        assert!(
            hosts.starts_with("--http-hosts: ") && hosts.contains("without a port"),
            "{hosts}"
        );
        let alone = wrong(PageArgs {
            http_cert: path(),
            ..PageArgs::default()
        });
        assert!(alone.contains("needs http_key"), "{alone}");
        let alone = wrong(PageArgs {
            http_key: path(),
            ..PageArgs::default()
        });
        assert!(alone.contains("needs http_cert"), "{alone}");
        let tls = wrong(PageArgs {
            http_cert: path(),
            http_key: path(),
            ..PageArgs::default()
        });
        assert!(tls.starts_with("--http-cert: ") && tls.contains("empty"), "{tls}");
    }
}
