//! Lines of standard input, read on a thread of their own: a terminal cannot be asked whether a line is there.

use std::io::{BufRead, IsTerminal};

use tokio::sync::mpsc;

/// The lines that come, to the end of the input.
pub(super) struct Lines {
    lines: mpsc::Receiver<String>,
    pub(super) is_terminal: bool,
}

impl Lines {
    pub(super) fn read() -> std::io::Result<Self> {
        let is_terminal = std::io::stdin().is_terminal();
        // One at a time: what is piped in waits in its pipe.
        let (sender, lines) = mpsc::channel(1);
        // It ends with the process: nothing can interrupt it while it reads.
        std::thread::Builder::new()
            .name("input".to_owned())
            .spawn(move || {
                for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                    if sender.blocking_send(line).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Lines { lines, is_terminal })
    }

    /// `None` at the end of the input.
    pub(super) async fn next(&mut self) -> Option<String> {
        self.lines.recv().await
    }
}
