//! A TCP server and its client in nodes without interfaces of the kernel, which need neither a device nor
//! root. After `toroid domain create blue 0,0,0 1,0,0 --interface stack`,
//! `toroid exec 0,0,0 -- sockets blue` prints the address of the server, ADDRESS, and waits for
//! `toroid exec 1,0,0 -- sockets blue ADDRESS`. Any program of a member with an interface, such as `nc`,
//! can be the client, too.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};

use toroid_client::member::Member;
use toroid_ethernet::Stack;

const PORT: u16 = 7000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let open = |domain: &str| {
        Ok::<_, Box<dyn std::error::Error>>(Stack::open(&Member::attach()?.domain(domain)?)?)
    };
    match &arguments[..] {
        [domain] => {
            let stack = open(domain)?;
            let listener = stack.listen(PORT)?;
            println!("{}", SocketAddr::from((stack.ipv4(), PORT)));
            let (mut client, address) = listener.accept()?;
            let mut question = String::new();
            client.read_to_string(&mut question)?;
            println!("{} asks: {question}", address.ip());
            client.write_all(b"well, and you?")?;
        }
        [domain, server] => {
            let stack = open(domain)?;
            let mut stream = stack.connect(server.parse()?)?;
            stream.write_all(b"how are you?")?;
            stream.shutdown(Shutdown::Write)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            println!("{server} answers: {answer}");
        }
        _ => return Err("usage: sockets DOMAIN [ADDRESS]".into()),
    }
    Ok(())
}
