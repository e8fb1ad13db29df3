//! Parses the output of faulthandler. It contains either the thread that handles the signal, which is the main thread,
//! or all threads, with the main thread last. The innermost frame comes first
//! (<https://docs.python.org/3/library/faulthandler.html>).
//!
//! ```text
//! Stack (most recent call first):
//!   File "/home/u/train.py", line 88 in next_batch
//!
//! Thread 0x00007f2a1c5ff6c0 [pt_pin_memory] (most recent call first):
//!   File "/usr/lib/python3.11/threading.py", line 320 in wait
//!
//! Current thread 0x00007f2a9d1c5740 [python] (most recent call first):
//!   File "/home/u/train.py", line 88 in next_batch
//! ```

use std::sync::Arc;

use paceline_health::event::{MAX_FRAMES, StackFrame};
use paceline_health::text::sanitize;

/// Maximum length of a file or function name.
const MAX_NAME: usize = 160;

/// Returns at most [`MAX_FRAMES`] frames of the main thread, innermost first, and the index of the innermost frame in
/// the user's own code. Of a deeper stack, keeps the innermost frames and that one.
pub fn main_thread(text: &str) -> (Vec<StackFrame>, Option<u8>) {
    let mut frames: Vec<StackFrame> = Vec::new();
    for line in text.lines() {
        let is_head = ["Stack ", "Thread ", "Current thread "]
            .iter()
            .any(|head| line.starts_with(head));
        if is_head {
            frames.clear();
        } else if let Some(frame) = frame(line) {
            frames.push(frame);
        }
    }
    let own = frames.iter().position(StackFrame::is_own);
    let own = own.map(|own| {
        if own >= MAX_FRAMES {
            frames.swap(own, MAX_FRAMES - 1);
        }
        own.min(MAX_FRAMES - 1) as u8
    });
    frames.truncate(MAX_FRAMES);
    (frames, own)
}

/// Parses a line such as `  File "/home/u/train.py", line 88 in next_batch`. Unknown parts are `???`.
fn frame(line: &str) -> Option<StackFrame> {
    let (file, rest) = line.trim_start().strip_prefix("File ")?.rsplit_once(", line ")?;
    let (number, function) = rest.split_once(" in ")?;
    Some(StackFrame {
        function: short(function.trim_matches('"')),
        file: short(file.trim_matches('"')),
        line: number.parse().unwrap_or(0),
    })
}

/// Shortens a name. Keeps its end, which says more than its beginning.
pub(super) fn short(name: &str) -> Arc<str> {
    sanitize::end(name, MAX_NAME).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_THREADS: &str = r#"Thread 0x00007f2a1c5ff6c0 [pt_pin_memory] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/u/helper.py", line 7 in run

Current thread 0x00007f2a9d1c5740 [python] (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1133 in _try_get_data
  File "paceline/_patch.py", line 7 in __next__
  File "/home/u/it is, line 3 in x/data.py", line 88 in <genexpr>
  File "/home/u/train.py", line 12 in <module>
"#;

    #[test]
    fn the_main_thread_and_the_users_own_frame() {
        let (frames, own) = main_thread(TWO_THREADS);
        assert_eq!(frames.len(), 4);
        assert_eq!(own, Some(2));
        assert_eq!(
            frames[2],
            StackFrame {
                function: "<genexpr>".into(),
                file: "/home/u/it is, line 3 in x/data.py".into(),
                line: 88,
            }
        );
    }

    #[test]
    fn a_deep_stack_keeps_the_users_own_frame() {
        let library = "  File \"/usr/lib/python3.11/copy.py\", line 1 in deepcopy\n".repeat(90);
        let text = format!(
            "Current thread 0x1 (most recent call first):\n{library}  File \"/t.py\", line 3 in f\n  ...\n"
        );
        let (frames, own) = main_thread(&text);
        assert_eq!(frames.len(), MAX_FRAMES);
        assert_eq!(&*frames[usize::from(own.unwrap())].file, "/t.py");
    }

    #[test]
    fn what_is_no_stack_has_no_frames() {
        for text in [
            "",
            "File",
            "  File \"x\", line",
            "Thread",
            "\0\u{1F600}",
            "  <no Python frame>",
        ] {
            assert_eq!(main_thread(text), (Vec::new(), None), "{text:?}");
        }
        let long = format!(
            "  File \"{}\u{1F600}\", line 99999999999 in f",
            "\u{e9}".repeat(500)
        );
        let (frames, _) = main_thread(&long);
        assert!(frames[0].file.len() <= MAX_NAME && frames[0].line == 0);
    }
}
