//! `runcast run get ID --watch`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use runcast_client::{Error, Frame, FrameKind, Run, RunObject, WatchFrom};

use super::{
    Failure, Get, Out, printable,
    show::{self, Steps},
    status_of,
};

/// Watches the run to its end; gives the exit status.
pub(super) async fn watch(run: &Run, get: &Get, out: &mut Out) -> Result<u8, Failure> {
    // One line when the connection is lost, however often it is tried.
    let is_lost = Arc::new(AtomicBool::new(false));
    let told = is_lost.clone();
    let mut frames = run.watch(WatchFrom::Start).on_lost(move |error| {
        if !told.swap(true, Ordering::Relaxed) {
            eprintln!("runcast: {}; trying again", printable(&error.to_string()));
        }
    });
    if !get.json {
        frames = frames.with_deltas();
    }
    let mut view = View { json: get.json, steps: Steps::new(get.verbose), status: String::new() };
    while let Some(frame) = frames.next().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(Error::NoStream(why)) => {
                let why = printable(&why);
                eprintln!("runcast: the server does not stream this run ({why}); asking for its status instead");
                return poll(run, Duration::from_millis(get.poll_ms), &mut view, out).await;
            }
            Err(error) => return Err(error.into()),
        };
        if is_lost.swap(false, Ordering::Relaxed) {
            eprintln!("runcast: the connection is back");
        }
        view.frame(&frame, out)?;
    }
    view.end(frames.run(), out)?;
    Ok(status_of(frames.run()))
}

/// Watches the status only.
async fn poll(run: &Run, every: Duration, view: &mut View, out: &mut Out) -> Result<u8, Failure> {
    let (mut polled, mut last) = (run.poll(every), None);
    while let Some(object) = polled.next().await {
        let object = object?;
        if view.json {
            let text = serde_json::json!({"type": "run", "run": object}).to_string();
            out.json(&text)?;
        }
        view.run(&object, out)?;
        last = Some(object);
    }
    view.end(last.as_ref(), out)?;
    Ok(status_of(last.as_ref()))
}

struct View {
    json: bool,
    steps: Steps,
    status: String,
}

impl View {
    fn frame(&mut self, frame: &Frame, out: &mut Out) -> Result<(), Failure> {
        if self.json {
            // A frame of which nothing is new is none.
            let is_empty = matches!(&frame.kind, FrameKind::StepsAppend { steps } if steps.is_empty());
            return if is_empty { Ok(()) } else { Ok(out.json(frame.json())?) };
        }
        if let Some(run) = frame.run() {
            self.run(run, out)?;
        }
        for step in frame.steps() {
            self.steps.step(step, out)?;
        }
        match &frame.kind {
            FrameKind::Delta { text, start } => self.steps.delta(text, *start, out)?,
            FrameKind::Gap { reason, .. } => {
                out.line(super::Paint::Red, &format!("[steps are missing here: {reason}]"))?;
            }
            FrameKind::Unreadable { reason, .. } => {
                out.line(super::Paint::Red, &format!("[a record could not be read: {reason}]"))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// One line for each status that the run comes to; how it ends is said at the end.
    fn run(&mut self, run: &RunObject, out: &mut Out) -> Result<(), Failure> {
        if !self.json && run.status() != self.status {
            run.status().clone_into(&mut self.status);
            if !run.is_terminal() {
                out.line(show::paint(run), &format!("[{}]", run.status()))?;
            }
        }
        Ok(())
    }

    fn end(&mut self, run: Option<&RunObject>, out: &mut Out) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        out.end_line()?;
        match run {
            Some(run) => Ok(show::end(run, out)?),
            None => Ok(out.line(super::Paint::Red, "the stream ended without a word of the run")?),
        }
    }
}
