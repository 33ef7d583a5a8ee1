//! A lean client of memcached's text protocol: one connection, with single or pipelined requests.

use std::io::{self, BufRead, BufReader, BufWriter, IoSlice, Read, Write};
use std::net::SocketAddrV4;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::{Client, Keys, Pipelined};
use crate::worker::network::socket::{Sockets, Stream};
use crate::worker::pattern;

/// Longest wait for a server.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of the longest accepted value.
const MAX_VALUE: usize = 64 << 20;

#[derive(Debug)]
pub struct Memcached {
    reader: BufReader<Stream>,
    writer: Stream,
    line: Vec<u8>,
    value: Vec<u8>,
    len: usize,
}

impl Memcached {
    pub fn connect(sockets: &Sockets, server: SocketAddrV4) -> io::Result<Self> {
        let stream = sockets.connect(server, PATIENCE)?;
        stream.set_nodelay()?;
        Self::over(stream)
    }

    pub fn connect_unix(path: &Path) -> io::Result<Self> {
        Self::over(Stream::connect_unix(path, PATIENCE)?)
    }

    fn over(writer: Stream) -> io::Result<Self> {
        Ok(Memcached {
            reader: BufReader::with_capacity(128 * 1024, writer.try_clone()?),
            writer,
            line: Vec::new(),
            value: Vec::new(),
            len: 0,
        })
    }

    pub fn version(&mut self) -> Result<String> {
        self.writer.write_all(b"version\r\n")?;
        let answer = self.answer()?;
        let version = answer.strip_prefix(b"VERSION ");
        let version = version.ok_or_else(|| unexpected(answer))?;
        Ok(String::from_utf8_lossy(version).into_owned())
    }

    /// Stores version 0 of all `keys` without waiting for each answer.
    pub fn fill(&mut self, keys: Keys) -> Result<()> {
        let mut value = Vec::new();
        self.many(keys, b"STORED", move |to, index, name| {
            value.resize(keys.len(index), 0);
            pattern::fill_value(index, 0, &mut value);
            write_set_header(to, name, value.len())?;
            to.write_all(&value)?;
            to.write_all(b"\r\n")
        })
    }

    /// Removes all `keys`, which must be stored, without waiting for each answer.
    pub fn empty(&mut self, keys: Keys) -> Result<()> {
        self.many(keys, b"DELETED", |to, _index, name| {
            to.write_all(b"delete ")?;
            to.write_all(name)?;
            to.write_all(b"\r\n")
        })
    }

    /// Reads a value and its line end. The buffer never shrinks.
    fn receive_value(&mut self, value_len: usize) -> io::Result<()> {
        self.len = value_len;
        let len = value_len + 2;
        if self.value.len() < len {
            self.value.resize(len, 0);
        }
        self.reader.read_exact(&mut self.value[..len])
    }

    /// Sends a request for each key, and expects the answer `wanted` to each.
    fn many(
        &mut self,
        keys: Keys,
        wanted: &[u8],
        mut request: impl FnMut(&mut dyn Write, u64, &[u8]) -> io::Result<()> + Send,
    ) -> Result<()> {
        let (reader, line) = (&mut self.reader, &mut self.line);
        let mut writer = BufWriter::with_capacity(256 * 1024, &self.writer);
        thread::scope(|scope| {
            let sender = scope.spawn(move || -> io::Result<()> {
                let mut name = Vec::new();
                for index in 0..keys.count() {
                    keys.name(index, &mut name);
                    request(&mut writer, index, &name)?;
                }
                writer.flush()
            });
            let answers = (0..keys.count()).try_for_each(|_| {
                read_line(reader, line)?;
                expect(line, wanted)
            });
            let sent = sender.join().unwrap_or(Err(io::ErrorKind::Other.into()));
            // A refusal explains more than the broken connection after it.
            answers.and(sent.map_err(Into::into))
        })
    }

    fn ask(&mut self, command: &[u8], key: &[u8]) -> io::Result<()> {
        self.line.clear();
        self.line.extend_from_slice(command);
        self.line.extend_from_slice(key);
        self.line.extend_from_slice(b"\r\n");
        self.writer.write_all(&self.line)
    }

    fn answer(&mut self) -> Result<&[u8]> {
        read_line(&mut self.reader, &mut self.line)?;
        Ok(&self.line)
    }
}

impl Client for Memcached {
    fn get(&mut self, key: &[u8]) -> Result<bool> {
        self.ask(b"get ", key)?;
        let answer = self.answer()?;
        if answer == b"END" {
            self.len = 0;
            return Ok(false);
        }
        let len = value_len(answer, key).ok_or_else(|| unexpected(answer))?;
        self.receive_value(len)?;
        expect(self.answer()?, b"END")?;
        Ok(true)
    }

    fn value(&self) -> &[u8] {
        &self.value[..self.len]
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.line.clear();
        write_set_header(&mut self.line, key, value.len())?;
        write_parts(&mut self.writer, &[&self.line, value, b"\r\n"])?;
        expect(self.answer()?, b"STORED")
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.ask(b"delete ", key)?;
        match self.answer()? {
            b"DELETED" => Ok(true),
            b"NOT_FOUND" => Ok(false),
            other => Err(unexpected(other)),
        }
    }
}

impl Pipelined for Memcached {
    fn send_gets(&mut self, names: &[Vec<u8>], together: usize) -> Result<()> {
        self.line.clear();
        for names in names.chunks(together) {
            self.line.extend_from_slice(b"get");
            for name in names {
                self.line.push(b' ');
                self.line.extend_from_slice(name);
            }
            self.line.extend_from_slice(b"\r\n");
        }
        Ok(self.writer.write_all(&self.line)?)
    }

    fn receive_gets(
        &mut self,
        names: &[Vec<u8>],
        together: usize,
        take: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<usize> {
        let (mut found, mut first) = (0, 0);
        for names in names.chunks(together) {
            let mut next = 0;
            while self.answer()? != b"END" {
                let mut left = names.iter().enumerate().skip(next);
                let of = left.find_map(|(at, name)| Some((at, value_len(&self.line, name)?)));
                let (at, len) = of.ok_or_else(|| unexpected(&self.line))?;
                self.receive_value(len)?;
                take(first + at, self.value());
                (next, found) = (at + 1, found + 1);
            }
            first += names.len();
        }
        Ok(found)
    }

    fn send_sets(&mut self, names: &[Vec<u8>], values: &[Vec<u8>]) -> Result<()> {
        self.line.clear();
        for (name, value) in names.iter().zip(values) {
            write_set_header(&mut self.line, name, value.len())?;
            self.line.extend_from_slice(value);
            self.line.extend_from_slice(b"\r\n");
        }
        Ok(self.writer.write_all(&self.line)?)
    }

    fn receive_sets(&mut self, count: usize) -> Result<u64> {
        let mut refused = 0;
        for _ in 0..count {
            match self.answer()? {
                b"SERVER_ERROR out of memory storing object" => refused += 1,
                answer => expect(answer, b"STORED")?,
            }
        }
        Ok(refused)
    }
}

/// Length of the value in a `VALUE` line of `key`; `None` for other lines.
fn value_len(line: &[u8], key: &[u8]) -> Option<usize> {
    let mut words = line.split(|&byte| byte == b' ');
    let (value, name, _flags, len) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let len = str::from_utf8(len).ok()?.parse().ok()?;
    (value == b"VALUE" && name == key && len <= MAX_VALUE).then_some(len)
}

fn write_set_header(to: &mut (impl Write + ?Sized), key: &[u8], len: usize) -> io::Result<()> {
    to.write_all(b"set ")?;
    to.write_all(key)?;
    write!(to, " 0 0 {len}\r\n")
}

/// Writes all parts with one system call, as fast clients do.
fn write_parts(to: &mut Stream, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = slices.as_mut_slice();
    while !left.is_empty() {
        match to.write_vectored(left)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => IoSlice::advance_slices(&mut left, count),
        }
    }
    Ok(())
}

/// Reads a line, without line end.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<()> {
    line.clear();
    if reader.read_until(b'\n', line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    while line.last().is_some_and(|byte| b"\r\n".contains(byte)) {
        line.pop();
    }
    Ok(())
}

fn expect(answer: &[u8], wanted: &[u8]) -> Result<()> {
    if answer == wanted {
        Ok(())
    } else {
        Err(unexpected(answer))
    }
}

fn unexpected(answer: &[u8]) -> anyhow::Error {
    let answer = String::from_utf8_lossy(answer);
    anyhow!("memcached protocol: the server answered \"{answer}\"")
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};

    use super::super::KeySet;
    use super::*;

    /// A server that reads the expected request and then sends its answer.
    fn scripted(expected: &'static [u8], answer: &'static [u8]) -> Memcached {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
            unreachable!("bound to an IPv4 address");
        };
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut got = vec![0; expected.len()];
            stream.read_exact(&mut got).unwrap();
            assert_eq!(got, expected);
            stream.write_all(answer).unwrap();
        });
        Memcached::connect(&Sockets::Kernel, address).unwrap()
    }

    #[test]
    fn a_value_may_contain_line_ends() {
        let mut client = scripted(b"get k\r\n", b"VALUE k 0 5\r\nab\r\nc\r\nEND\r\n");
        assert!(client.get(b"k").unwrap());
        assert_eq!(client.value(), b"ab\r\nc");
    }

    #[test]
    fn another_keys_value_is_an_error_and_a_miss_is_not() {
        assert!(!scripted(b"get k\r\n", b"END\r\n").get(b"k").unwrap());
        let wrong = scripted(b"get k\r\n", b"VALUE j 0 1\r\nx\r\nEND\r\n").get(b"k");
        assert!(wrong.unwrap_err().to_string().contains("\"VALUE j 0 1\""));
        let gone = scripted(b"get k\r\n", b"").get(b"k");
        assert!(gone.unwrap_err().is::<io::Error>());
    }

    #[test]
    fn some_keys_of_a_request_may_be_missing() {
        let answer = b"VALUE b 0 1\r\nx\r\nEND\r\nVALUE c 0 0\r\n\r\nEND\r\n";
        let mut client = scripted(b"get a b\r\nget c d\r\n", answer);
        let names = ["a", "b", "c", "d"].map(Vec::from);
        client.send_gets(&names, 2).unwrap();
        let mut values = Vec::new();
        let mut take = |at, value: &[u8]| values.push((at, value.to_vec()));
        assert_eq!(client.receive_gets(&names, 2, &mut take).unwrap(), 2);
        assert_eq!(values, [(1, b"x".to_vec()), (2, Vec::new())]);
        let mut client = scripted(b"get a\r\n", b"VALUE b 0 1\r\nx\r\nEND\r\n");
        client.send_gets(&names[..1], 1).unwrap();
        let wrong = client.receive_gets(&names[..1], 1, &mut |_, _| ());
        assert!(wrong.unwrap_err().to_string().contains("\"VALUE b 0 1\""));
    }

    #[test]
    fn every_pipelined_request_needs_its_answer() {
        let keys = Keys::Set(KeySet { bytes: 16, keys: 2 });
        let deletes = b"delete value-16-00000000\r\ndelete value-16-00000001\r\n";
        let mut client = scripted(deletes, b"DELETED\r\nDELETED\r\n");
        client.empty(keys).unwrap();
        let missing = scripted(deletes, b"DELETED\r\nNOT_FOUND\r\n").empty(keys);
        assert!(missing.unwrap_err().to_string().contains("\"NOT_FOUND\""));
    }

    #[test]
    fn sets_and_deletes_distinguish_their_answers() {
        let mut client = scripted(b"set k 0 0 2\r\nhi\r\n", b"STORED\r\n");
        client.set(b"k", b"hi").unwrap();
        let full =
            scripted(b"set k 0 0 2\r\nhi\r\n", b"SERVER_ERROR out of memory\r\n").set(b"k", b"hi");
        assert!(full.unwrap_err().to_string().contains("out of memory"));
        for (answer, was_present) in [(&b"DELETED\r\n"[..], true), (b"NOT_FOUND\r\n", false)] {
            let deleted = scripted(b"delete k\r\n", answer).delete(b"k");
            assert_eq!(deleted.unwrap(), was_present);
        }
    }
}
