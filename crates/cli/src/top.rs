//! `brodo top`: live view of the flows of a running instance.
//!
//! Three threads and one queue. *watch* samples the instance over its control socket ([`watch`]), *keys*
//! reads the terminal, *end* waits for signals and for the terminal's end ([`end`]); each puts an [`Input`]
//! into the queue of the main thread, which alone draws. So a key is answered at once, also while a stopped
//! instance does not answer. The data is in [`model`], the view's state in [`screen`], and [`draw`] renders
//! both; none of these knows a terminal.
//!
//! Cost: the pause between two samples is at least a hundred times the processor time of the last one here,
//! drawing included. With a few hundred flows that changes nothing; with ten thousand the picture is renewed
//! more slowly, which the header says.
//!
//! The terminal is restored however this ends: at `q`, at a signal, in a panic (ratatui's hook). A terminal
//! that has gone away (hang-up, end of file) ends it too.

mod draw;
mod end;
mod model;
mod screen;
mod watch;

use crate::clients;
use crate::clients::args::TopOptions;
use crate::failure::Failure;
use model::Model;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::style::Colored;
use screen::{Outcome, Screen};
use std::io::{self, IsTerminal};
use std::mem;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use watch::{Update, Watcher};

/// Inputs of the main thread.
#[derive(Debug)]
enum Input {
    /// A sample of the instance, or the error instead.
    Update(Update),
    Key(KeyEvent),
    /// A new size of the terminal.
    Resized,
    /// A signal, or the end of the terminal.
    End,
}

/// Shows an instance until the user quits.
pub(crate) fn top(options: &TopOptions) -> Result<u8, Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::Usage("brodo top needs a terminal; brodo flows and brodo status do not".into()));
    }
    let path = clients::path_of(options.instance.as_ref())?;
    let watcher = Watcher::new(clients::connect(&path)?, path, options.instance.clone());
    let (queue, inputs) = channel();
    let end = end::Watch::new().map_err(Failure::io("wait for signals: sigaction"))?;
    let mut terminal = ratatui::try_init().map_err(Failure::io("use the terminal: ioctl"))?;
    let shown = (|| {
        end.start(queue.clone())?;
        let (select, selected) = channel();
        let to = queue.clone();
        let interval = options.interval;
        thread::Builder::new().name("watch".into()).spawn(move || watcher.run(interval, &selected, &to))?;
        thread::Builder::new().name("keys".into()).spawn(move || read_keys(&queue))?;
        show(&mut terminal, &inputs, &select)
    })();
    let restored = terminal.show_cursor().and(ratatui::try_restore());
    if restored.is_err() {
        // Its end would try once more and print why it failed, and a print to a terminal that is gone panics.
        mem::forget(terminal);
    }
    match shown.and(restored) {
        // Without a terminal there is no place for the error.
        Err(_) if end::is_hung_up() => Ok(0),
        done => done.map(|()| 0).map_err(Failure::io("use the terminal: write")),
    }
}

/// Puts keys into the queue until the terminal cannot be read.
///
/// At the end of a terminal crossterm reads on without pause, so this thread never returns then; [`end`] sees
/// the hang-up and the process ends.
fn read_keys(queue: &Sender<Input>) {
    loop {
        let input = match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Input::Key(key),
            Ok(Event::Resize(..)) => Input::Resized,
            Ok(_) => continue,
            Err(_) => Input::End,
        };
        let is_end = matches!(input, Input::End);
        if queue.send(input).is_err() || is_end {
            return;
        }
    }
}

/// Draws after every input, until one of them ends it.
fn show(
    terminal: &mut DefaultTerminal,
    inputs: &Receiver<Input>,
    select: &Sender<Option<brodo_control::flow::FlowRef>>,
) -> io::Result<()> {
    let (mut model, mut screen) = (Model::default(), Screen::new(Colored::ansi_color_disabled()));
    loop {
        terminal.draw(|frame| draw::draw(frame, &model, &mut screen))?;
        let Ok(first) = inputs.recv() else { return Ok(()) };
        // One picture for all queued inputs.
        for input in std::iter::once(first).chain(inputs.try_iter()) {
            match input {
                Input::End => return Ok(()),
                Input::Resized => {}
                Input::Update(Update { sample, stretched }) => {
                    match sample {
                        Ok(sample) => model.update(*sample),
                        Err(why) => model.lost = Some(why),
                    }
                    model.stretched = stretched;
                    if screen.leave_lost_flow(&model) {
                        let _ = select.send(None);
                    }
                }
                Input::Key(key) => match screen.key(key, &model) {
                    Outcome::Quit => return Ok(()),
                    Outcome::Draw => {}
                    Outcome::LookAt(flow) => {
                        model.look_at(flow);
                        // Without a watching thread the queue is at its end too.
                        let _ = select.send(flow);
                    }
                },
            }
        }
    }
}
