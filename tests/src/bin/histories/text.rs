//! A client of memcached's protocol.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// Limit of waiting for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to the server.
pub struct Text(BufReader<TcpStream>);

impl Text {
    /// Connects to a port of this node.
    pub fn connect(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Text(BufReader::new(stream)))
    }

    pub fn get(&mut self, key: &str) -> io::Result<Option<Vec<u8>>> {
        let line = self.ask(&[b"get ", key.as_bytes(), b"\r\n"])?;
        if line == "END" {
            return Ok(None);
        }
        let len = line
            .strip_prefix("VALUE ")
            .and_then(|rest| rest.rsplit(' ').next());
        let len: usize = len
            .and_then(|len| len.parse().ok())
            .ok_or_else(|| odd(&line))?;
        let mut value = vec![0; len + 2];
        self.0.read_exact(&mut value)?;
        value.truncate(len);
        match self.line()?.as_str() {
            "END" => Ok(Some(value)),
            other => Err(odd(other)),
        }
    }

    pub fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        let head = format!("set {key} 0 0 {}\r\n", value.len());
        self.expect(&[head.as_bytes(), value, b"\r\n"], &["STORED"])
            .map(drop)
    }

    /// Returns whether the key was there.
    pub fn delete(&mut self, key: &str) -> io::Result<bool> {
        let words = [b"delete ", key.as_bytes(), b"\r\n"];
        Ok(self.expect(&words, &["DELETED", "NOT_FOUND"])? == 0)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.expect(&[b"flush_all\r\n"], &["OK"]).map(drop)
    }

    /// The index of the answer in `answers`.
    fn expect(&mut self, words: &[&[u8]], answers: &[&str]) -> io::Result<usize> {
        let line = self.ask(words)?;
        let which = answers.iter().position(|answer| *answer == line);
        which.ok_or_else(|| odd(&line))
    }

    fn ask(&mut self, words: &[&[u8]]) -> io::Result<String> {
        self.0.get_mut().write_all(&words.concat())?;
        self.line()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

fn odd(line: &str) -> io::Error {
    io::Error::other(format!("the server said {line:?}"))
}
