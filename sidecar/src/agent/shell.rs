//! The event loop around an [`Agent`]: one thread and one runtime, with everything that can wake it in one `select!`.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::control::Control;
use super::join::{Invitation, Joined, again, backoff, find, join, lonely};
use super::{Agent, Stage};
use crate::aggregator::server::{END_GRACE, Hosted};
use crate::host::monotonic_ns;
use crate::sink::status::Status;
use crate::uplink::Heard;
use crate::uplink::link::{Dealer, Link};
use crate::warn;

/// Polling interval of sources.
const TICK: Duration = Duration::from_millis(100);
/// After this many failed attempts to reconnect, this node becomes standalone.
const ATTEMPTS: u32 = 6;
/// Maximum number of failed attempts for the first link to an aggregator on another host, which may start later. They
/// take about half a minute.
const FIRST_ATTEMPTS: u32 = 11;

/// Runs a sidecar until it ends.
pub async fn run(agent: Agent, invitation: Invitation, mut controls: Receiver<Control>) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut shell = Shell {
        agent,
        link: None,
        hosted: None,
        address: None,
        peer: None,
        joining: None,
        searching: None,
        leaving: None,
        attempt: 0,
        searches: 0,
        invitation,
    };
    shell.begin_to_join();
    let mut listening = true;
    while shell.agent.stage() != Stage::Gone {
        tokio::select! {
            _ = tick.tick() => shell.tick(),
            joined = outcome(&mut shell.joining) => shell.joined(joined),
            found = outcome(&mut shell.searching) => shell.found(found),
            message = receive(&mut shell.link) => shell.received(message),
            control = controls.recv(), if listening => match control {
                Some(Control::HangUp) => shell.hang_up(),
                Some(control) => shell.agent.control(control, monotonic_ns()),
                None => listening = false,
            },
        }
        shell.send().await;
    }
    // Close the link first, so that an aggregator in this process does not wait for it.
    shell.link = None;
    if let Some(hosted) = shell.hosted {
        hosted.finish(shell.agent.grace()).await;
    }
    if let Some(leaving) = shell.leaving {
        // Ignore a failure, because the sidecar ends anyway.
        let _ = leaving.await;
    }
}

struct Shell {
    agent: Agent,
    link: Option<Dealer>,
    /// The aggregator, if it runs in this process.
    hosted: Option<Hosted>,
    /// The hosted aggregator's address for other nodes, if it is the job's aggregator.
    address: Option<SocketAddr>,
    /// Address of the link's other end.
    peer: Option<SocketAddr>,
    joining: Option<JoinHandle<Option<Joined>>>,
    /// While this node is standalone: the search for the job's aggregator.
    searching: Option<JoinHandle<Option<Joined>>>,
    /// The shutdown of the aggregator that monitored this node standalone.
    leaving: Option<JoinHandle<()>>,
    attempt: u32,
    searches: u32,
    invitation: Invitation,
}

async fn outcome(joining: &mut Option<JoinHandle<Option<Joined>>>) -> Option<Joined> {
    match joining {
        Some(handle) => {
            let joined = handle.await.ok().flatten();
            *joining = None;
            joined
        }
        None => pending().await,
    }
}

async fn receive(link: &mut Option<Dealer>) -> Option<Vec<u8>> {
    match link {
        Some(link) => link.recv().await.ok(),
        None => pending().await,
    }
}

impl Shell {
    /// Starts looking for the aggregator in the background.
    fn begin_to_join(&mut self) {
        let attempt = self.attempt;
        let invitation = Invitation {
            attempt,
            ..self.invitation.clone()
        };
        self.attempt += 1;
        let attempts = match self.agent.stage() {
            Stage::Waiting if self.invitation.is_shared() => FIRST_ATTEMPTS,
            Stage::Waiting => 0,
            _ => ATTEMPTS,
        };
        let own = self
            .hosted
            .as_ref()
            .map(|hosted| hosted.inside.clone())
            .zip(self.address);
        self.joining = Some(tokio::spawn(async move {
            if attempt > 0 {
                sleep(backoff(attempt - 1, invitation.me.agent)).await;
            }
            // The job's aggregator runs in this process. Even if it is too busy to answer, do not look for another one
            // or start one.
            if let Some((inside, address)) = own {
                return again(&inside, address, &invitation.me).await.ok();
            }
            join(invitation, attempt >= attempts).await
        }));
    }

    /// Keeps looking for the job's aggregator while this node is standalone.
    fn begin_to_search(&mut self) {
        if !self.agent.is_parted() || !self.invitation.has_hope() || self.searching.is_some() {
            return;
        }
        let attempt = self.searches;
        let invitation = Invitation {
            attempt,
            ..self.invitation.clone()
        };
        let pause = lonely(attempt, invitation.me.agent);
        self.searches += 1;
        self.searching = Some(tokio::spawn(async move {
            sleep(pause).await;
            find(invitation).await
        }));
    }

    fn found(&mut self, found: Option<Joined>) {
        let is_ours = self.agent.is_parted();
        match found.filter(|_| is_ours) {
            Some(found) => {
                if let Some(joining) = self.joining.take() {
                    joining.abort();
                }
                self.joined(Some(found));
            }
            None => self.begin_to_search(),
        }
    }

    /// Sends the last messages to the aggregator that monitored this node standalone, and shuts it down.
    fn leave_alone(&mut self, now_ns: u64) {
        self.searches = 0;
        let farewell = self.agent.rejoin(now_ns);
        let (link, hosted) = (self.link.take(), self.hosted.take());
        let Some(hosted) = hosted else { return };
        warn::once(
            "found",
            "the job's aggregator was found: this node is no longer watched alone",
        );
        self.leaving = Some(tokio::spawn(async move {
            if let Some(mut link) = link {
                for message in farewell {
                    if link.send(message).await.is_err() {
                        break;
                    }
                }
                hosted.finish(END_GRACE).await;
                drop(link);
            } else {
                hosted.finish(END_GRACE).await;
            }
        }));
    }

    fn joined(&mut self, joined: Option<Joined>) {
        let Some(joined) = joined else {
            return self.begin_to_join();
        };
        let Joined {
            link,
            welcome,
            address,
            hosted,
            alone,
        } = joined;
        self.attempt = 0;
        (self.peer, self.invitation.silent) = (Some(address), None);
        let now_ns = monotonic_ns();
        let is_back = alone.is_none() && self.agent.is_parted();
        if is_back {
            self.leave_alone(now_ns);
        } else if alone.is_some() {
            self.agent.part();
        }
        if hosted.is_some() {
            self.hosted = hosted;
            self.address = alone.is_none().then_some(address);
        }
        // Fill these fields whenever this process hosts the aggregator, not only when it was just started. A sidecar
        // that rejoins its own aggregator must not look as if it had moved to another one.
        let own = self.hosted.as_ref();
        let run_dir = own.map(|_| self.invitation.plan.run_dir.display().to_string());
        self.invitation.status.say(&Status::Ready {
            aggregator: address.to_string(),
            http: own.and_then(|own| own.http).map(|http| http.to_string()),
            http_elsewhere: own.and_then(|own| own.http_elsewhere.clone()),
            run_dir,
            alone: alone.clone(),
        });
        self.link = Some(link);
        if let Heard::Welcome { new_journal } = self.agent.uplink().welcomed(&welcome, now_ns) {
            // A node that was standalone introduces itself again, which also reports that it is no longer standalone.
            self.agent.linked(new_journal || is_back, alone, now_ns);
        }
        self.begin_to_search();
    }

    fn tick(&mut self) {
        let now_ns = monotonic_ns();
        self.agent.tick(now_ns);
        if self.link.is_some() && self.agent.uplink().is_stuck(now_ns) {
            warn::once("link", "the aggregator does not answer: looking for it again");
            self.invitation.silent = self.peer;
            self.drop_link();
        }
    }

    fn received(&mut self, message: Option<Vec<u8>>) {
        let Some(message) = message else {
            return self.drop_link();
        };
        let now_ns = monotonic_ns();
        match self.agent.uplink().received(&message, now_ns) {
            Heard::Acked => self.agent.settle(now_ns),
            Heard::Refused(why) => {
                warn::once("refused", format_args!("the aggregator refuses: {why}"));
                self.drop_link();
            }
            Heard::Wanted(wants) => self.agent.wanted(&wants),
            Heard::Order(order) => self.agent.order(&order),
            Heard::Welcome { .. } | Heard::Noise => {}
        }
    }

    fn hang_up(&self) {
        match &self.hosted {
            Some(hosted) => hosted.hang_up(),
            None => {
                warn::answer("SIGHUP: the job's aggregator runs on another host; change the policy there")
            }
        }
    }

    fn drop_link(&mut self) {
        self.link = None;
        self.agent.uplink().broken();
        if self.hosted.as_mut().is_some_and(Hosted::has_ended) {
            self.hosted = None;
        }
        if self.joining.is_none() {
            self.begin_to_join();
        }
    }

    async fn send(&mut self) {
        let Some(link) = &mut self.link else { return };
        while let Some(message) = self.agent.uplink().poll_send(monotonic_ns()) {
            if link.send(message).await.is_err() {
                return self.drop_link();
            }
        }
    }
}
