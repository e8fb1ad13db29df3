//! Controls the terminal: handles keys, its size, and messages from the aggregator, until the user quits.

use std::io::{self, Stdout, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::event::{self, Event, KeyEventKind};
use ratatui_crossterm::crossterm::style::force_color_output;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui_crossterm::crossterm::{cursor, execute};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::low_level::emulate_default_handler;

use super::paper;
use super::view;
use crate::output::Style;
use crate::top::app::{App, Link};
use crate::top::client::link::Heard;

/// Time to wait for a key before checking for messages.
const BEAT: Duration = Duration::from_millis(100);
/// Interval between two updates of the displayed times.
const CLOCK: Duration = Duration::from_secs(1);

/// Restores the terminal when it is dropped, however the program ends.
struct Borrowed;

impl Borrowed {
    fn borrow() -> io::Result<Borrowed> {
        enable_raw_mode()?;
        let borrowed = Borrowed;
        execute!(stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(borrowed)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Ignore errors, because a terminal that has closed cannot be restored.
        let _ = execute!(stdout(), LeaveAlternateScreen, cursor::Show);
        let _ = disable_raw_mode();
    }
}

/// Ends the program when its terminal closes. Without this, it would wait forever for a key of a closed terminal, and
/// would use a core meanwhile.
fn end_with_the_terminal() {
    let keyboard = stdin();
    loop {
        // Request no events, because a hang-up is always reported.
        let mut asked = [PollFd::new(&keyboard, PollFlags::empty())];
        match poll(&mut asked, None) {
            Err(Errno::INTR) => {}
            Err(_) => return,
            Ok(_) => break,
        }
    }
    let _ = emulate_default_handler(SIGHUP);
}

/// The times of the last response and of the last drawing.
struct Clocks {
    answered_at: Instant,
    drawn_at: Option<Instant>,
}

/// Shows the job until the user quits.
pub(crate) fn run(mut app: App, heard: &Receiver<Heard>, style: Style) -> io::Result<()> {
    let is_told_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&is_told_to_end))?;
    }
    thread::Builder::new()
        .name("hang-up".to_owned())
        .spawn(end_with_the_terminal)?;
    force_color_output(style.color);
    let _borrowed = Borrowed::borrow()?;
    let mut terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
    let now = Instant::now();
    let mut clocks = Clocks {
        answered_at: now,
        drawn_at: None,
    };
    while !app.is_over && !is_told_to_end.load(Ordering::Relaxed) {
        let is_news = listen(&mut app, heard, &mut clocks);
        let is_due = clocks.drawn_at.is_none_or(|at| at.elapsed() >= CLOCK);
        if is_news || is_due {
            tell_times(&mut app, &clocks);
            draw(&mut terminal, &mut app, style)?;
            clocks.drawn_at = Some(Instant::now());
        }
        // Handle all pending keys before drawing once.
        let mut patience = BEAT;
        while event::poll(patience)? {
            patience = Duration::ZERO;
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => app.press(key),
                _ => {}
            }
            clocks.drawn_at = None;
        }
    }
    Ok(())
}

/// Handles pending messages, unless the view is paused. Returns true if there were any.
fn listen(app: &mut App, heard: &Receiver<Heard>, clocks: &mut Clocks) -> bool {
    let mut is_news = false;
    while !app.is_paused
        && let Ok(heard) = heard.try_recv()
    {
        is_news = true;
        match heard {
            Heard::News(news) => {
                app.job.take(*news);
                app.put_in_order();
            }
            Heard::Nothing => {}
            Heard::Away(why, end) => {
                let told = app.job.report.as_ref().is_some_and(|report| report.end.is_some());
                app.link = if told || end.is_some() {
                    Link::Ended(end)
                } else {
                    let for_s = clocks.answered_at.elapsed().as_secs();
                    Link::Away { for_s, why }
                };
                continue;
            }
        }
        app.link = Link::Live;
        clocks.answered_at = Instant::now();
    }
    is_news
}

fn tell_times(app: &mut App, clocks: &Clocks) {
    app.pass(Instant::now());
    if let Link::Away { for_s, .. } = &mut app.link {
        *for_s = clocks.answered_at.elapsed().as_secs();
    }
}

fn draw(terminal: &mut Terminal<CrosstermBackend<Stdout>>, app: &mut App, style: Style) -> io::Result<()> {
    terminal.draw(|frame| {
        let area = frame.area();
        let screen = view::screen(app, usize::from(area.width), usize::from(area.height), style);
        (app.first, app.rows, app.scrolled) = (screen.first, screen.rows, screen.scrolled);
        paper::draw(&screen.lines, style, frame.buffer_mut());
    })?;
    Ok(())
}
