//! The server for every load: HTTP/1.1 responder, sink, source and echo. Its HTTP/2 is in `server_http2`.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::rc::Rc;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::asked::{BODY_MAX, size_in, usable};
use super::message::{HEAD_MAX, head_end, request_head};
use super::server_http2::{self, Bodies};
use crate::Error;

/// Bytes per system call of sink and source.
const BLOCK: usize = 256 * 1024;

/// The parameters of a server. With port 0, the kernel chooses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSpec {
    /// Address to listen on.
    pub address: IpAddr,
    /// Port of the HTTP/1.1 responder.
    pub http: u16,
    /// Port of HTTP/2 by prior knowledge, and of gRPC.
    pub http2: u16,
    /// The port of the sink, which reports how many bytes it has received when the sender is done.
    pub sink: u16,
    /// The port of the source, which sends bytes without end.
    pub source: u16,
    /// The port of the echo.
    pub echo: u16,
    /// The length of the usual body, bytes.
    pub body: usize,
    /// Threads for HTTP and echo; sinks and sources have one per connection.
    pub workers: usize,
}

impl Default for ServerSpec {
    fn default() -> Self {
        Self {
            address: Ipv4Addr::UNSPECIFIED.into(),
            http: 8080,
            http2: 8081,
            sink: 5201,
            source: 5202,
            echo: 5203,
            body: 64,
            workers: 1,
        }
    }
}

/// The ports of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "as in ServerSpec")]
pub struct Listening {
    pub http: u16,
    pub http2: u16,
    pub sink: u16,
    pub source: u16,
    pub echo: u16,
}

/// A running server. Its threads end with the process.
#[derive(Debug)]
pub struct Server {
    ports: Listening,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// The ports on which it listens.
    #[must_use]
    pub fn ports(&self) -> Listening {
        self.ports
    }

    /// Waits until one of its threads fails, which normally never happens.
    ///
    /// # Errors
    /// The thread's failure.
    pub fn join(self) -> Result<(), Error> {
        for thread in self.threads {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                .map_err(Error::io("accepting connections"))?;
        }
        Ok(())
    }
}

/// Starts a server.
///
/// # Errors
/// If a port is in use.
pub fn serve(spec: &ServerSpec) -> Result<Server, Error> {
    let (http, ports_http) = listeners(spec, spec.http)?;
    let (http2, ports_http2) = listeners(spec, spec.http2)?;
    let (echo, ports_echo) = listeners(spec, spec.echo)?;
    let sink = listen(spec, spec.sink)?;
    let source = listen(spec, spec.source)?;
    let port = |listener: &std::net::TcpListener| listener.local_addr().map(|address| address.port());
    let failed = || Error::io("asking for a listener's address");
    let ports = Listening {
        http: ports_http,
        http2: ports_http2,
        echo: ports_echo,
        sink: port(&sink).map_err(failed())?,
        source: port(&source).map_err(failed())?,
    };
    let mut threads = Vec::new();
    for ((http, http2), echo) in http.into_iter().zip(http2).zip(echo) {
        let body = spec.body;
        threads.push(std::thread::spawn(move || work(http, http2, echo, body)));
    }
    threads.push(std::thread::spawn(move || each_on_its_own(&sink, take)));
    threads.push(std::thread::spawn(move || each_on_its_own(&source, give)));
    Ok(Server { ports, threads })
}

/// One listener per worker, all on the same port.
fn listeners(spec: &ServerSpec, mut port: u16) -> Result<(Vec<std::net::TcpListener>, u16), Error> {
    let mut all = Vec::new();
    for _ in 0..spec.workers.max(1) {
        let listener = listen(spec, port)?;
        port = listener.local_addr().map_err(Error::io("asking for a listener's address"))?.port();
        all.push(listener);
    }
    Ok((all, port))
}

fn listen(spec: &ServerSpec, port: u16) -> Result<std::net::TcpListener, Error> {
    let address = SocketAddr::new(spec.address, port);
    let attempt = || -> io::Result<std::net::TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        // Accepted connections inherit it.
        socket.set_tcp_nodelay(true)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        Ok(socket.into())
    };
    attempt().map_err(Error::io(format!("cannot listen on {address}")))
}

fn work(
    http: std::net::TcpListener,
    http2: std::net::TcpListener,
    echo: std::net::TcpListener,
    body: usize,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = Rc::new(Answer::new(body));
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        http.set_nonblocking(true)?;
        echo.set_nonblocking(true)?;
        http2.set_nonblocking(true)?;
        let (http, echo) = (TcpListener::from_std(http)?, TcpListener::from_std(echo)?);
        let http2 = server_http2::accept(TcpListener::from_std(http2)?, Rc::new(Bodies::new(body)));
        let mut http2 = std::pin::pin!(http2);
        loop {
            tokio::select! {
                failed = &mut http2 => return failed,
                accepted = http.accept() => if let Some(stream) = usable(accepted).await? {
                    // A client that closes early is no failure.
                    let answer = answer.clone();
                    tokio::task::spawn_local(async move { drop(respond(stream, &answer).await) });
                },
                accepted = echo.accept() => if let Some(stream) = usable(accepted).await? {
                    tokio::task::spawn_local(async move { drop(mirror(stream).await) });
                },
            }
        }
    })
}

/// The usual answers, head and body in one piece.
struct Answer {
    keep: Vec<u8>,
    close: Vec<u8>,
}

impl Answer {
    fn new(body: usize) -> Self {
        let whole = |close: bool| {
            let mut whole = head(body, close).into_bytes();
            whole.resize(whole.len() + body, b'x');
            whole
        };
        Self { keep: whole(false), close: whole(true) }
    }
}

fn head(length: usize, close: bool) -> String {
    let connection = if close { "Connection: close\r\n" } else { "" };
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n{connection}\r\n")
}

async fn respond(mut stream: TcpStream, answer: &Answer) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(1024);
    loop {
        let end = loop {
            if let Some(end) = head_end(&buffer) {
                break end;
            }
            if buffer.len() > HEAD_MAX || stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let Some(request) = request_head(&buffer[..end]) else {
            return stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                .await;
        };
        let (close, length) = (request.close, request.length);
        let size = size_in(request.path);
        discard(&mut stream, &mut buffer, end, length).await?;
        match size {
            None => stream.write_all(if close { &answer.close } else { &answer.keep }).await?,
            Some(size) if size > BODY_MAX => {
                stream.write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n").await?;
            }
            Some(size) => write_sized(&mut stream, size, close).await?,
        }
        if close {
            // Close in order, so that the client's next connection can have the same port at once. The side that closes
            // first keeps the port for a while.
            stream.shutdown().await?;
            return Ok(());
        }
    }
}

/// Removes a request's head and body from the buffer, or from the connection.
async fn discard(stream: &mut TcpStream, buffer: &mut Vec<u8>, end: usize, length: u64) -> io::Result<()> {
    let buffered = (buffer.len() - end) as u64;
    if length <= buffered {
        // The length fits, because so many bytes are in memory.
        buffer.drain(..end + usize::try_from(length).unwrap_or(0));
        return Ok(());
    }
    buffer.clear();
    let mut rest = length - buffered;
    let mut block = vec![0; BLOCK];
    while rest > 0 {
        let want = usize::try_from(rest).unwrap_or(BLOCK).min(BLOCK);
        let count = stream.read(&mut block[..want]).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        rest -= count as u64;
    }
    Ok(())
}

async fn write_sized(stream: &mut TcpStream, size: usize, close: bool) -> io::Result<()> {
    static ZEROS: [u8; BLOCK] = [b'x'; BLOCK];
    let head = head(size, close);
    let (mut at_head, mut left) = (0, size);
    while at_head < head.len() || left > 0 {
        let parts = [IoSlice::new(&head.as_bytes()[at_head..]), IoSlice::new(&ZEROS[..left.min(BLOCK)])];
        let count = stream.write_vectored(&parts).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let of_head = count.min(head.len() - at_head);
        at_head += of_head;
        left -= count - of_head;
    }
    Ok(())
}

async fn mirror(mut stream: TcpStream) -> io::Result<()> {
    let mut bytes = [0; 64];
    loop {
        let count = stream.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&bytes[..count]).await?;
    }
}

fn each_on_its_own(listener: &std::net::TcpListener, act: fn(std::net::TcpStream) -> io::Result<()>) -> io::Result<()> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => drop(std::thread::spawn(move || act(stream))),
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
            Err(error) => return Err(error),
        }
    }
}

fn take(mut stream: std::net::TcpStream) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    let mut total = 0_u64;
    loop {
        match stream.read(&mut block)? {
            0 => break,
            count => total += count as u64,
        }
    }
    stream.write_all(&total.to_be_bytes())?;
    stream.shutdown(Shutdown::Both)
}

fn give(mut stream: std::net::TcpStream) -> io::Result<()> {
    let block = vec![0x5a; BLOCK];
    loop {
        stream.write_all(&block)?;
    }
}
