//! Standard output, so that a run cannot do anything to the terminal.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _, Write as _},
};

/// How a text looks, where there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Cyan,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Red => "\x1b[31m",
            Self::Green => "\x1b[32m",
            Self::Cyan => "\x1b[36m",
        }
    }
}

pub(super) struct Out {
    to: io::Stdout,
    has_colours: bool,
    is_raw: bool,
    /// Nothing stands on the present line.
    at_line_start: bool,
}

impl Out {
    /// Colours only on a terminal, and not where `NO_COLOR` is set. `is_raw`: control characters as they are.
    pub fn new(is_raw: bool) -> Self {
        let to = io::stdout();
        let has_colours = to.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { to, has_colours, is_raw, at_line_start: true }
    }

    /// Text of a run that may go on.
    pub fn text(&mut self, paint: Paint, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let shown = if self.is_raw { text.to_owned() } else { printable(text) };
        self.at_line_start = shown.ends_with('\n');
        let bytes = match paint.code() {
            code if self.has_colours && !code.is_empty() => format!("{code}{shown}\x1b[0m"),
            _ => shown,
        };
        self.to.write_all(bytes.as_bytes())?;
        self.to.flush()
    }

    /// Ends the present line, if something stands on it.
    pub fn end_line(&mut self) -> io::Result<()> {
        if self.at_line_start { Ok(()) } else { self.text(Paint::Plain, "\n") }
    }

    /// A line of its own; a text of several lines stays several.
    pub fn line(&mut self, paint: Paint, text: &str) -> io::Result<()> {
        self.end_line()?;
        self.text(paint, text.trim_end_matches('\n'))?;
        self.end_line()
    }

    /// Each line of `text` behind `mark`.
    pub fn marked(&mut self, paint: Paint, mark: &str, text: &str) -> io::Result<()> {
        let text = text.replace("\r\n", "\n");
        let marked: Vec<String> =
            text.trim_end_matches('\n').split('\n').map(|line| format!("{mark}{line}").trim_end().to_owned()).collect();
        self.line(paint, &marked.join("\n"))
    }

    /// One JSON object, as one line. What a terminal would act on is escaped in it, which means the same.
    pub fn json(&mut self, text: &str) -> io::Result<()> {
        let mut line = String::with_capacity(text.len() + 1);
        for letter in text.chars() {
            match letter {
                // Between members only: JSON has none in its strings.
                '\n' | '\r' => line.push(' '),
                letter if !self.is_raw && is_active(letter) => {
                    let mut units = [0; 2];
                    for unit in letter.encode_utf16(&mut units) {
                        let _ = write!(line, "\\u{unit:04x}");
                    }
                }
                letter => line.push(letter),
            }
        }
        line.push('\n');
        self.to.write_all(line.as_bytes())?;
        self.to.flush()
    }
}

/// Whether a terminal would do something instead of showing it: controls, and what turns the direction of writing.
fn is_active(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

/// The text with all that is active written as an escape; line ends and tabs stay.
pub(super) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\n' | '\t' => out.push(letter),
            '\r' if letters.peek() == Some(&'\n') => {}
            '\r' => out.push_str("\\r"),
            letter if is_active(letter) && (letter as u32) < 0x80 => drop(write!(out, "\\x{:02x}", letter as u32)),
            letter if is_active(letter) => drop(write!(out, "\\u{{{:x}}}", letter as u32)),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_shown() {
        assert_eq!(
            printable("a\tb\r\nc\rd\x1b[2J\x07\x7f\u{9b}31m\u{202e}é😀\0"),
            "a\tb\nc\\rd\\x1b[2J\\x07\\x7f\\u{9b}31m\\u{202e}é😀\\x00"
        );
    }
}
