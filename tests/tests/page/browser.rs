//! Controls a headless Chromium by its DevTools protocol, which uses zero-terminated JSON messages over a pair of pipes
//! (<https://chromedevtools.github.io/devtools-protocol/>, `--remote-debugging-pipe`).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);

pub struct Browser {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    number: u64,
    /// Errors that the page reported.
    pub complaints: Vec<String>,
    /// Dialogs that the page opened; each is dismissed.
    pub dialogs: Vec<String>,
    _home: TempDir,
}

impl Browser {
    pub fn start() -> Browser {
        let home = tempfile::tempdir().unwrap();
        // The shell sets the pipes to the descriptors that the browser expects.
        let line = "exec chromium --headless --no-sandbox --disable-gpu --disable-extensions --no-first-run \
                    --user-data-dir=\"$0\" --remote-debugging-pipe about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut process = Command::new("bash")
            .args(["-c", line])
            .arg(home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut browser = Browser {
            to: process.stdin.take().unwrap(),
            from: BufReader::new(process.stdout.take().unwrap()),
            process,
            session: None,
            number: 0,
            complaints: Vec::new(),
            dialogs: Vec::new(),
            _home: home,
        };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({ "targetId": page["targetId"], "flatten": true }),
        );
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(1280, 800);
        browser
    }

    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut request = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let mut text = Vec::new();
            assert!(
                self.from.read_until(0, &mut text).unwrap() > 0,
                "the browser has ended: is chromium installed?"
            );
            text.pop();
            let answer: Value = serde_json::from_slice(&text).unwrap();
            if answer["id"] == self.number {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.heard(&answer);
        }
    }

    fn heard(&mut self, event: &Value) {
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Log.entryAdded") => {
                self.complaints.push(event["params"].to_string());
            }
            Some("Page.javascriptDialogOpening") => {
                self.dialogs.push(event["params"]["message"].to_string());
                // The response is ignored; its number is not used by other calls.
                let close = json!({ "id": 0, "method": "Page.handleJavaScriptDialog", "params": { "accept": false },
                    "sessionId": self.session });
                self.to.write_all(format!("{close}\0").as_bytes()).unwrap();
            }
            _ => {}
        }
    }

    /// Evaluates JavaScript and returns its value.
    pub fn run(&mut self, script: &str) -> Value {
        let answer = self.call(
            "Runtime.evaluate",
            json!({ "expression": script, "returnByValue": true, "awaitPromise": true }),
        );
        assert!(answer.get("exceptionDetails").is_none(), "{script}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true. An exception counts as false.
    pub fn until(&mut self, script: &str) {
        let end = Instant::now() + PATIENCE;
        let look = format!("(() => {{ try {{ return {script} }} catch {{ return false }} }})()");
        while self.run(&look) != json!(true) {
            assert!(
                Instant::now() < end,
                "{script} is not true of:\n{}\n{:?}",
                self.run("document.body.innerText").as_str().unwrap_or_default(),
                self.complaints
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses a key.
    pub fn press(&mut self, key: &str) {
        let text = if key.len() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({ "type": kind, "key": key });
            if kind == "keyDown" {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
