//! Many files of a sandbox, read one after the other without ever being in memory as a whole.
//!
//! Each is a head of nine bytes and so many bytes of content. Names are not part of the stream: whoever asked for the files
//! knows them in their order, so nothing inside can make up another one.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::{Error, Output};

/// For each read; a file's process only copies from memory.
const READ_LIMIT: Duration = Duration::from_secs(30);
const OPERATION: &str = "read files of the sandbox";
const HEAD_BYTES: usize = 9;

type End = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// What there is under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamedKind {
    /// Nothing that the sandbox's user can read: no such file, a directory, a pipe.
    Nothing,
    File,
    /// A file that its owner may execute.
    Program,
    /// A symbolic link; its content is what it points to.
    Link,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamedHead {
    pub kind: StreamedKind,
    pub bytes: u64,
}

impl StreamedHead {
    pub const NOTHING: StreamedHead = StreamedHead {
        kind: StreamedKind::Nothing,
        bytes: 0,
    };

    /// For backends: as it stands in the stream.
    pub fn encode(self) -> [u8; HEAD_BYTES] {
        let kind = match self.kind {
            StreamedKind::Nothing => 0,
            StreamedKind::File => 1,
            StreamedKind::Program => 2,
            StreamedKind::Link => 3,
        };
        let mut head = [kind; HEAD_BYTES];
        head[1..].copy_from_slice(&self.bytes.to_le_bytes());
        head
    }

    fn decode(head: [u8; HEAD_BYTES]) -> io::Result<StreamedHead> {
        let [kind, bytes @ ..] = head;
        let kind = match kind {
            0 => StreamedKind::Nothing,
            1 => StreamedKind::File,
            2 => StreamedKind::Program,
            3 => StreamedKind::Link,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(StreamedHead {
            kind,
            bytes: u64::from_le_bytes(bytes),
        })
    }
}

/// The files of [`crate::Sandbox::read_files`], in the order in which they were asked for.
pub struct FileStream {
    output: Output,
    /// What is left of the current file.
    left: u64,
    end: End,
}

impl FileStream {
    /// For backends: `end` says why the output ended, if it did so early.
    pub fn new(
        output: Output,
        end: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> FileStream {
        FileStream {
            output,
            left: 0,
            end: Box::pin(end),
        }
    }

    /// The head of the next file. The content of the one before is skipped where it was not read.
    pub async fn next(&mut self) -> Result<StreamedHead, Error> {
        let mut skipped = vec![0; if self.left > 0 { 64 * 1024 } else { 0 }];
        while self.left > 0 {
            self.read(&mut skipped).await?;
        }
        let mut head = [0; HEAD_BYTES];
        let read = limited(self.output.read_exact(&mut head)).await?;
        if read.is_err() {
            return Err(self.broken().await);
        }
        let head = StreamedHead::decode(head).map_err(engine)?;
        self.left = head.bytes;
        Ok(head)
    }

    /// Reads on in the current file; 0 is its end.
    pub async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = limited(self.output.read(&mut buffer[..most])).await?;
        match read {
            Ok(count) if count > 0 => {
                self.left -= count as u64;
                Ok(count)
            }
            Ok(_) | Err(_) => Err(self.broken().await),
        }
    }

    async fn broken(&mut self) -> Error {
        match timeout(READ_LIMIT, &mut self.end).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) | Err(_) => engine(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl std::fmt::Debug for FileStream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FileStream").finish_non_exhaustive()
    }
}

fn engine(source: io::Error) -> Error {
    Error::Engine {
        operation: OPERATION,
        source,
    }
}

async fn limited<T>(work: impl Future<Output = io::Result<T>>) -> Result<io::Result<T>, Error> {
    timeout(READ_LIMIT, work)
        .await
        .map_err(|_| Error::Deadline {
            operation: OPERATION,
            limit: READ_LIMIT,
        })
}
