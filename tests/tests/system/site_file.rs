//! Users do not control /etc/paceline/config.toml. Therefore a mistake there must be a warning and keep no job from
//! starting.

use std::fs;
use std::process::Command;

use crate::launched::{Place, text};

/// Starts a job with this site file in a private /etc. Returns `None` without the required privileges.
fn run(place: &Place, site: &str, options: &[&str], variables: &[(&str, &str)]) -> Option<(i32, String)> {
    place.write("site.toml", site);
    let own_etc = "mount -t tmpfs tmpfs /etc && mkdir /etc/paceline && cp site.toml /etc/paceline/config.toml || exit 250
        exec \"$@\"";
    let command = ["--", "sh", "-c", "exit 7"];
    let plain = place.paceline([&["run", "--run-dir", "run"], options, &command].concat());
    let mut inside = Command::new("unshare");
    inside.args(["--map-root-user", "--mount", "sh", "-c", own_etc, "sh"]);
    inside.arg(plain.get_program()).args(plain.get_args());
    let set = plain.get_envs().filter_map(|(name, value)| Some((name, value?)));
    inside.envs(set).envs(variables.iter().copied());
    let output = inside.current_dir(place.path(".")).output().unwrap();
    let said = [text(&output.stdout), text(&output.stderr)].concat();
    let code = output.status.code().unwrap();
    if code == 250 || said.starts_with("unshare: ") {
        eprintln!("LEFT OUT: the site's file: no /etc of our own here: {said}");
        return None;
    }
    Some((code, said))
}

#[test]
fn its_mistakes_start_jobs_without_it() {
    let place = Place::new();
    for (site, problem) in [
        ("[race]\npace = 12\n", ":1:2: unknown key `race`"),
        ("no toml at all", ":1:4: "),
        (
            "http = \"0.0.0.0:0\"\nhttp_token_file = \"none\"\n",
            ":2:1: http_token_file",
        ),
    ] {
        let Some((code, said)) = run(&place, site, &[], &[("PACELINE_HTTP", "0.0.0.0:0")]) else {
            return;
        };
        assert_eq!(code, 7, "{site}: {said}");
        let warning = [
            "/etc/paceline/config.toml is ignored: ",
            problem,
            "; PACELINE_HTTP and PACELINE_ACT",
        ];
        for expected in warning {
            assert!(said.contains(expected), "{site}: {said}");
        }
        assert!(!said.contains("http://0.0.0.0"), "{site}: {said}");
        // The file may have restricted what the command line requests, so that must be refused.
        let typed = run(&place, site, &["--http", "127.0.0.1:0"], &[]).unwrap();
        assert_eq!(typed.0, 64, "{site}: {}", typed.1);
    }
}

#[test]
fn what_it_may_have_bounded_goes_with_it() {
    let place = Place::new();
    place.write(
        "paceline.toml",
        "http = \"lo:9833\"\nact = true\non_fault = \"signal\"\n",
    );
    for (site, is_bounded) in [("", false), ("http_token_file = \"none\"\n", true)] {
        let Some((code, said)) = run(&place, site, &["--dry-run"], &[]) else {
            return;
        };
        assert_eq!(code, 0, "{site}: {said}");
        for option in ["--http=lo:9833", "--act"] {
            assert_eq!(said.contains(option), !is_bounded, "{site}: {option}: {said}");
        }
    }
}

#[test]
fn a_good_one_holds() {
    let place = Place::new();
    // A setting that is impossible here must be ignored, and nothing else.
    let site = "on_fault = \"requeue\"\nhttp = \"lo:9833\"\n";
    let Some((code, said)) = run(&place, site, &["--dry-run"], &[]) else {
        return;
    };
    let warning =
        "on_fault of /etc/paceline/config.toml is ignored: --on-fault requeue: this is not a Slurm job";
    assert!(
        code == 0 && said.contains(warning) && said.contains("--http=lo:9833"),
        "{said}"
    );
    // A user's mistake must not be attributed to the file.
    let site = "[detector.impact]\ncritical_ratio = 0.06\n";
    for typed in [["--set", "impact.warning_ratio=0.08"], ["--on-fault", "requeue"]] {
        let (code, said) = run(&place, site, &typed, &[]).unwrap();
        assert!(code == 64 && !said.contains("is ignored"), "{typed:?}: {said}");
    }
    fs::create_dir(place.path("paceline.toml")).unwrap();
    let (code, said) = run(&place, "", &[], &[]).unwrap();
    assert!(
        code == 64 && said.contains("./paceline.toml: not a regular file"),
        "{said}"
    );
}
