//! Accepts TLS connections.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Interval, interval, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::cluster::Cluster;

/// A listener for connections. All of its connections end during a simulated outage.
pub struct Door {
    come: mpsc::Receiver<(Visit, SocketAddr)>,
    address: SocketAddr,
}

impl Door {
    /// Accepts connections of this socket.
    ///
    /// # Errors
    /// Fails if the socket has no address.
    pub fn of(listener: TcpListener, acceptor: TlsAcceptor, cluster: Arc<Cluster>) -> io::Result<Door> {
        let address = listener.local_addr()?;
        let (sender, come) = mpsc::channel(16);
        tokio::spawn(async move {
            while !sender.is_closed() {
                let Ok((stream, from)) = listener.accept().await else {
                    sleep(Duration::from_millis(50)).await;
                    continue;
                };
                let _ = stream.set_nodelay(true);
                let (acceptor, cluster, sender) = (acceptor.clone(), Arc::clone(&cluster), sender.clone());
                tokio::spawn(async move {
                    if cluster.is_away() {
                        return;
                    }
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let tick = interval(Duration::from_millis(50));
                        let _ = sender
                            .send((
                                Visit {
                                    stream,
                                    cluster,
                                    tick,
                                },
                                from,
                            ))
                            .await;
                    }
                });
            }
        });
        Ok(Door { come, address })
    }
}

impl axum::serve::Listener for Door {
    type Io = Visit;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visit, SocketAddr) {
        match self.come.recv().await {
            Some(visit) => visit,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// One connection.
pub struct Visit {
    stream: TlsStream<TcpStream>,
    cluster: Arc<Cluster>,
    tick: Interval,
}

impl Visit {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        // Polls the timer, so that waiting tasks wake up and notice the outage.
        while self.tick.poll_tick(context).is_ready() {}
        if self.cluster.is_away() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }
}

impl AsyncRead for Visit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
