//! `brodo top`: flows of a running instance, as they go.
//!
//! A thread asks the instance over its control socket ([`watch`]) and passes on what it says; this one draws and reads keys. So a key is
//! answered at once, also while an instance that was stopped does not answer. What is known is in [`model`], what is looked at in
//! [`screen`], and [`draw`] makes the picture of both; none of these knows a terminal.
//!
//! To look at a network must not slow it: the pause between two questions is at least a hundred times the processor time that the
//! last one took here, drawing included. With a few hundred flows that changes nothing; with ten thousand the picture is renewed more
//! slowly, which the header says.
//!
//! The terminal is given back however this ends: at `q`, at a signal, in a panic (ratatui's hook).

mod draw;
mod model;
mod screen;
mod units;
mod watch;

use crate::args::Top;
use crate::clients;
use crate::failure::Failure;
use model::Model;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use screen::{Outcome, Screen};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;
use std::time::Duration;
use watch::{Told, Watcher};

/// How long to wait for a key before looking whether there is something new.
const TICK: Duration = Duration::from_millis(100);

/// Shows an instance until the user has seen enough.
pub(crate) fn top(options: &Top) -> Result<u8, Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::Usage("brodo top needs a terminal; brodo flows and brodo status do not".into()));
    }
    let watcher = Watcher::new(clients::client(options.instance.as_ref())?, options.instance.clone());
    let asked_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, asked_to_end.clone())
            .map_err(Failure::io("hear of signals: sigaction"))?;
    }
    let mut terminal = ratatui::try_init().map_err(Failure::io("use the terminal: ioctl"))?;
    let shown = show(&mut terminal, watcher, options.interval, &asked_to_end);
    let restored = ratatui::try_restore();
    shown.and(restored).map_err(Failure::io("use the terminal: write"))?;
    Ok(0)
}

/// Draws and reads keys until it is enough.
fn show(
    terminal: &mut DefaultTerminal,
    watcher: Watcher,
    interval: Duration,
    asked_to_end: &AtomicBool,
) -> io::Result<()> {
    let (ask, asked) = channel();
    let (tell, told) = channel();
    thread::Builder::new().name("watch".into()).spawn(move || watcher.run(interval, &asked, &tell))?;
    let (mut model, mut screen) = (Model::default(), Screen::default());
    let mut is_new = true;
    while !asked_to_end.load(Ordering::Relaxed) {
        loop {
            match told.try_recv() {
                Ok(Told { sample, stretched }) => {
                    match sample {
                        Ok(sample) => model.update(*sample),
                        Err(why) => model.lost = Some(why),
                    }
                    model.stretched = stretched;
                    is_new = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the watching thread has ended"));
                }
            }
        }
        if std::mem::take(&mut is_new) {
            terminal.draw(|frame| draw::draw(frame, &model, &mut screen))?;
        }
        if !event::poll(TICK)? {
            continue;
        }
        is_new = true;
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match screen.key(key, &model) {
                Outcome::Quit => break,
                Outcome::Draw => {}
                Outcome::LookAt(flow) => {
                    model.look_at(flow);
                    // If nobody listens the next look finds out.
                    let _ = ask.send(flow);
                }
            },
            _ => {}
        }
    }
    Ok(())
}
