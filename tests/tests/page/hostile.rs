//! Shows names and texts with markup or control characters in a real Chromium: on the live page of a real job, on its
//! report, and on an untrusted report. Each check is also run on deliberately broken pages and must find the problem
//! there.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::browser::Browser;
use crate::{ANSWER, paceline};

const PATIENCE: Duration = Duration::from_secs(120);
/// Markup that runs a script if any part of it is not kept as text. It is short enough for a GPU's name, which has 96
/// bytes.
const MARKUP: &str = "<img src=x onerror=ran(1)></script><script>ran(2)</script><svg onload=ran(3)>";
/// Terminal sequences, line breaks and bidirectional overrides, which the command line rejects in names.
const CONTROLS: &str = "\u{1b}[31m\u{202e}\n";
const MEGABYTE: usize = 1 << 20;
/// The size limit of a whole page, regardless of its texts.
const LONGEST: usize = 1 << 19;

/// One rank on a node with GPUs. It runs steps until a file ends it, and then prints hostile text.
const TRAINER: &str = r#"
import os, paceline, time
words = open("words", newline="").read()
paceline.mark(words[:20], value=1)
while not os.path.exists("end"):
    paceline.step()
    time.sleep(0.02)
raise RuntimeError(words + "x" * (1 << 20) + "\n" + words.strip())
"#;

/// Runs before any script of a page: records scripts that hostile text has run, and those that the page's policy has
/// blocked.
const WATCH: &str = "window.hostile = {ran: [], refused: []}; \
    window.ran = which => { hostile.ran.push(which); alert(which); }; \
    addEventListener('securitypolicyviolation', one => hostile.refused.push(one.violatedDirective));";

/// Collects the problems of a page. There are none if all of these lists are empty.
const LOOK: &str = r"JSON.stringify({
    ran: hostile.ran,
    refused: hostile.refused,
    foreign: [...document.querySelectorAll('*')].filter(one => one.getAttribute('src') === 'x'
        || one.getAttributeNames().some(name => name.startsWith('on'))
        || (one.tagName === 'SCRIPT' && one.text === 'ran(2)')).map(one => one.outerHTML.slice(0, 80)),
    raw: [document.title, document.documentElement.innerText, ...[...document.querySelectorAll('[title],[aria-label]')].flatMap(
        one => [one.title, one.ariaLabel ?? ''])].join('').match(/[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g) ?? [],
    wide: [...document.querySelectorAll('*')].filter(one => one === document.documentElement ? one.scrollWidth > WIDTH
        : one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX === 'visible').map(
        one => `${one.scrollWidth} in ${one.clientWidth}: ${one.outerHTML.slice(0, 80)}`),
})";

/// Checks a page in a window of this width. The width is passed in, because a phone's own value for it would grow with
/// content that does not fit.
fn look(page: &mut Browser, width: u32) -> Value {
    let look = LOOK.replace("WIDTH", &width.to_string());
    serde_json::from_str(page.run(&look).as_str().unwrap()).unwrap()
}

/// Checks a page on a desktop and on a phone. Each text must be in its element.
fn assert_text(page: &mut Browser, what: &str, says: &[(&str, &str)]) {
    for width in [390, 1280] {
        page.resize(width, 844);
        // Waits, because a page that draws itself redraws for its new width.
        let end = Instant::now() + PATIENCE;
        let mut seen = look(page, width);
        while seen["wide"] != json!([]) && Instant::now() < end {
            thread::sleep(Duration::from_millis(50));
            seen = look(page, width);
        }
        let nothing = json!({ "ran": [], "refused": [], "foreign": [], "raw": [], "wide": [] });
        assert_eq!(seen, nothing, "{what}, {width} wide");
        for (place, words) in says {
            let shown = json!([place, words]);
            page.until(&format!(
                "(([place, words]) => [...document.querySelectorAll(place)].some(one => one.checkVisibility() \
                 && one.innerText.replace(/\\s+/g, ' ').includes(words)))({shown})"
            ));
        }
    }
    let length = page
        .run("document.documentElement.outerHTML.length")
        .as_u64()
        .unwrap() as usize;
    assert!(length < LONGEST, "{what} has {length} characters");
    assert_eq!(page.dialogs, Vec::<String>::new(), "{what}");
    // Ignores failed requests for live data, because the aggregator no longer responds after its job.
    let is_foreign = |one: &&String| !(one.contains("net::ERR_") && one.contains("/v1/live"));
    let complaints: Vec<_> = page.complaints.iter().filter(is_foreign).collect();
    assert_eq!(complaints, Vec::<&String>::new(), "{what}");
}

/// Returns the longest name that the command line accepts, which has a word that cannot be wrapped.
fn name() -> String {
    let start = format!("n{MARKUP}\"'&amp;{{{{x}}}}\u{202e}");
    format!("{start}{}", "w".repeat(250 - start.len()))
}

/// A job with this name, on a node with this name, whose GPUs have such names too.
struct Named {
    place: TempDir,
    process: Child,
    address: String,
}

impl Named {
    fn start() -> Named {
        let place = tempfile::tempdir().unwrap();
        let at = |file: &str| place.path().join(file);
        let words = format!("{MARKUP}{CONTROLS}");
        fs::write(at("words"), &words).unwrap();
        fs::write(at("train.py"), TRAINER).unwrap();
        fs::write(at("kmsg"), "").unwrap();
        let programs = std::env::current_exe().unwrap();
        let library = programs.parent().unwrap().join("libpaceline_fake_nvml.so");
        fs::copy(library, at("libnvidia-ml.so.1")).unwrap();
        let gpus = format!("gpus = 2\nmodel = {}\n", json!(words));
        fs::write(at("libnvidia-ml.so.1.toml"), gpus).unwrap();
        let process = paceline()
            .current_dir(place.path())
            .env("XDG_CONFIG_HOME", at("config"))
            .env("PACELINE_RACK", name())
            .args(["run", "--run-dir", "run", "--job", &name(), "--node", &name()])
            .args(["--kmsg", "kmsg", "--nvml-lib", "./libnvidia-ml.so.1", "--"])
            .args([
                "env",
                "RANK=0",
                "WORLD_SIZE=1",
                "LOCAL_RANK=0",
                "python3",
                "train.py",
            ])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut job = Named {
            place,
            process,
            address: String::new(),
        };
        let end = Instant::now() + PATIENCE;
        while job.address.is_empty() {
            assert!(Instant::now() < end, "no metrics.addr");
            thread::sleep(Duration::from_millis(20));
            let said = fs::read_to_string(job.place.path().join("run/metrics.addr")).unwrap_or_default();
            said.trim().clone_into(&mut job.address);
        }
        job
    }

    /// Writes a line to the kernel log about a lost GPU, with hostile text.
    fn lose_a_gpu(&self) {
        let log = fs::OpenOptions::new()
            .append(true)
            .open(self.place.path().join("kmsg"));
        let words = format!("{MARKUP}{}", CONTROLS.trim_end());
        let line = format!("4,1,77000000,-;NVRM: Xid (PCI:0000:18:00): 79, pid=7, name={words}\n");
        log.unwrap().write_all(line.as_bytes()).unwrap();
    }

    /// Opens the job's page and waits for all of the texts.
    fn show(&self, page: &mut Browser) {
        let address = format!("http://{}/", self.address);
        page.call("Page.navigate", json!({ "url": address }));
        page.until("data.steps.length > 0 && data.gpus !== null && data.events.length > 0");
        // Repeats the message, because the log is read only from its current end on, and on a busy machine reading
        // starts late.
        let end = Instant::now() + PATIENCE;
        while page.run(&format!("{ANSWER}.includes('gpu-lost')")) != json!(true) {
            assert!(Instant::now() < end, "no GPU is lost");
            self.lose_a_gpu();
            thread::sleep(Duration::from_secs(1));
        }
    }

    fn end(&mut self) {
        fs::write(self.place.path().join("end"), "").unwrap();
        let end = Instant::now() + PATIENCE;
        while self.process.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "the job does not end");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // Lets the launcher and its trainer end by themselves if possible.
        let _ = fs::write(self.place.path().join("end"), "");
        let end = Instant::now() + Duration::from_secs(20);
        while self.process.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn browser() -> Browser {
    let mut page = Browser::start();
    page.call(
        "Page.addScriptToEvaluateOnNewDocument",
        json!({ "source": WATCH }),
    );
    page
}

fn open(page: &mut Browser, file: &Path) {
    page.call(
        "Page.navigate",
        json!({ "url": format!("file://{}", file.display()) }),
    );
    page.until("document.readyState === 'complete' && document.querySelector('main') !== null");
}

/// Moves the pointer over a canvas with a tooltip.
fn point_at(page: &mut Browser, canvas: &str) {
    page.run(&format!(
        "(one => {{ const box = one.getBoundingClientRect(); one.dispatchEvent(new PointerEvent('pointermove', \
         {{clientX: box.left + 3, clientY: box.top + 3}})); }})(document.querySelector({}))",
        json!(canvas)
    ));
}

/// Simulates an aggregator without escaping, which sends the same data with hostile texts that are a hundred times as
/// long as any that a real one accepts.
fn tell_raw(page: &mut Browser) {
    let words = json!(format!("{MARKUP}{}", "x".repeat(1 << 14)));
    page.run(&format!(
        "(words => {{ const [verdict] = data.report.verdicts; data.report.job = words; data.report.dir = words; \
         Object.assign(verdict, {{action: words, means: words, title: words, whom: words, cause: words}}); \
         verdict.subject.node = words; verdict.evidence = [[words, words, words]]; \
         data.report.coverage.notes = [words]; data.places.models = [words]; data.places.nodes[0] = [words, words]; \
         Object.assign(data.events[0], {{text: words, kind: words, node: words}}); \
         data.ports = {{kinds: {{[words]: [1, 1]}}, troubled: 1, worst: [[words, words, words, false, null, 1, 1, 1]]}}; \
         draw(['report', 'places', 'gpus', 'events', 'ports', 'steps']); }})({words})"
    ));
    page.until("document.getElementById('coverage').textContent.includes('ran(1)') && waiting.size === 0");
}

#[test]
#[ignore = "needs chromium"]
fn names_and_words_stay_text_on_the_page_and_in_the_report() {
    let mut job = Named::start();
    let mut page = browser();
    job.show(&mut page);
    let on_node = format!("n{MARKUP}");
    assert_text(
        &mut page,
        "the live page",
        &[
            ("#job", &on_node),
            ("#answer", &on_node),
            ("#gpus-says", &format!("{MARKUP}␛[31m")),
            ("#node-cards", &on_node),
            ("#timeline", &MARKUP[..20]),
            ("#node-cards", &format!("rack {on_node}")),
        ],
    );
    for canvas in ["#nodes", ".lane canvas"] {
        point_at(&mut page, canvas);
        assert_text(&mut page, canvas, &[("#tip", MARKUP)]);
        page.run("tip(null, null)");
    }
    job.end();
    page.until("document.getElementById('link').textContent.length > 0");
    assert_text(&mut page, "the live page after the end", &[("#job", &on_node)]);

    tell_raw(&mut page);
    let seen = look(&mut page, 1280);
    for what in ["ran", "refused", "foreign", "wide"] {
        assert_eq!(seen[what], json!([]), "{what}: told raw");
    }

    let mut page = browser();
    open(&mut page, &job.place.path().join("run/report.html"));
    assert_text(
        &mut page,
        "the report",
        &[
            ("h1", &on_node),
            ("header p", &format!("{MARKUP}␛[31m")),
            (".verdict", &on_node),
            ("main", &format!("Commands ended: {on_node}")),
        ],
    );
}

/// Writes a report as if from an untrusted source. Each of its texts has a megabyte.
fn strange_report(dir: &Path) {
    let report = paceline()
        .args(["simulate", "--gpus", "4", "--steps", "300", "--json"])
        .args(["--fault", "slow rank=2 factor=1.25 from=100"])
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let mut report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let words = json!(format!("{MARKUP}{CONTROLS}{}", "x".repeat(MEGABYTE)));
    report["job"] = words.clone();
    report["coverage"]["notes"] = json!([words, words]);
    let verdict = &mut report["verdicts"][0];
    verdict["subject"]["node"] = words.clone();
    verdict["action"] = words.clone();
    verdict["evidence"][0]["what"] = words;
    fs::write(dir.join("report.json"), report.to_string()).unwrap();
    let made = paceline().arg("report").arg(dir).arg("--html").status();
    assert!(made.unwrap().success());
}

#[test]
#[ignore = "needs chromium"]
fn the_report_of_strangers_stays_text() {
    let place = tempfile::tempdir().unwrap();
    strange_report(place.path());
    let mut page = browser();
    open(&mut page, &place.path().join("report.html"));
    let shown = format!("{MARKUP}␛[31m");
    assert_text(
        &mut page,
        "the report",
        &[
            ("h1", &shown),
            (".verdict h2", MARKUP),
            (".verdict .now", &shown),
            ("main", &shown),
        ],
    );
}

/// Each check must find a page that interprets markup.
#[test]
#[ignore = "needs chromium"]
fn what_is_more_than_text_is_found() {
    let job = Named::start();
    for lax in [false, true] {
        let mut page = browser();
        page.call("Page.setBypassCSP", json!({ "enabled": lax }));
        // Builds a page whose only way to write text interprets markup and adds a control character.
        let broken = "const own = Object.getOwnPropertyDescriptor(Node.prototype, 'textContent'); \
             Object.defineProperty(Node.prototype, 'textContent', {get: own.get, set(text) { this.innerHTML = '\u{202e}' + text; }});";
        page.call(
            "Page.addScriptToEvaluateOnNewDocument",
            json!({ "source": broken }),
        );
        job.show(&mut page);
        page.run("at('answer').style.whiteSpace = 'nowrap'; at('answer').append('w'.repeat(999))");
        assert_found(&mut page, "the live page", lax);
    }

    let place = tempfile::tempdir().unwrap();
    strange_report(place.path());
    let file = place.path().join("report.html");
    let escaped = fs::read_to_string(&file).unwrap();
    let broken = escaped
        // Removes the rest, which would be part of the image and not be shown.
        .replace("&lt;svg onload=ran(3)&gt;", "")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("␛", "\u{1b}")
        .replace("overflow-wrap", "x");
    fs::write(&file, broken).unwrap();
    for lax in [false, true] {
        let mut page = browser();
        page.call("Page.setBypassCSP", json!({ "enabled": lax }));
        open(&mut page, &file);
        assert_found(&mut page, "the report", lax);
    }
}

/// Checks that the problem was found. With `lax`, the page's policy is removed, so that blocked scripts run.
fn assert_found(page: &mut Browser, what: &str, lax: bool) {
    let count = if lax { "hostile.ran" } else { "hostile.refused" };
    page.until(&format!("{count}.length > 0"));
    let seen = look(page, 1280);
    for found in ["foreign", "raw", "wide", if lax { "ran" } else { "refused" }] {
        assert_ne!(seen[found], json!([]), "{found} of {what}: {seen}");
    }
    assert_eq!(
        !page.dialogs.is_empty(),
        lax,
        "{what}: dialogs {:?}",
        page.dialogs
    );
}
