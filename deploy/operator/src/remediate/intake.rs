//! Receives verdicts by `POST /verdicts` over HTTPS. The sender authenticates with the token of a pod's ServiceAccount.
//!
//! A pod may report only machines on which pods of its own job run. The response contains the decision and is sent only
//! after the decision was recorded.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;

use super::actor::Said;
use super::callers::{self, Caller, Callers, Job, Unheard};
use super::counts::Counts;
use super::notices::{Notice, Parcel};
use super::retry::Retry;
use crate::api::Api;
use crate::timestamp::now_ms;

/// Size limit of a body.
const MOST_BYTES: usize = 1 << 20;
/// Size limit of a token. Tokens of Kubernetes have about 1,200 characters.
const MOST_TOKEN: usize = 16 << 10;
/// Time limit for a decision. When it has passed, the sender must retry.
const DECIDED_WITHIN: Duration = Duration::from_secs(8);
/// Limit of requests processed at once.
const AT_ONCE: usize = 16;

/// The receiver of verdicts; see the module documentation.
pub struct Intake {
    api: Api,
    audience: Option<String>,
    callers: Mutex<Callers>,
    reports: mpsc::Sender<Said>,
    until: watch::Receiver<Option<Instant>>,
    counts: Arc<Counts>,
    room: Semaphore,
    /// Retries of failed token reviews, and of failed look-ups of jobs.
    unknown: [Mutex<Retry>; 2],
}

impl Intake {
    /// Creates the receiver. It sends accepted reports to `reports` while this replica is the leader.
    pub fn of(
        api: Api,
        audience: Option<String>,
        reports: mpsc::Sender<Said>,
        until: watch::Receiver<Option<Instant>>,
        counts: Arc<Counts>,
    ) -> Arc<Intake> {
        Arc::new(Intake {
            api,
            audience,
            callers: Mutex::default(),
            reports,
            until,
            counts,
            room: Semaphore::new(AT_ONCE),
            unknown: Default::default(),
        })
    }

    /// Returns the HTTP routes.
    pub fn router(self: &Arc<Intake>) -> Router {
        Router::new()
            .route("/verdicts", post(verdicts))
            .layer(DefaultBodyLimit::max(MOST_BYTES))
            .with_state(Arc::clone(self))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Callers) -> T) -> T {
        look(&mut self.callers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Unheard> {
        let token = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let token = token
            .and_then(|value| value.strip_prefix("Bearer "))
            .map(str::trim);
        let token = token
            .filter(|token| !token.is_empty() && token.len() <= MOST_TOKEN)
            .ok_or(Unheard::Token)?;
        let known = self.with(|callers| callers.known(token));
        let caller = match known {
            Some(caller) => caller,
            None => {
                let caller = callers::review(&self.api, token, self.audience.as_deref()).await?;
                self.with(|callers| callers.knows(token, &caller));
                caller
            }
        };
        self.with(|callers| callers.admit(&caller, Instant::now()))?;
        Ok(caller)
    }

    async fn job(&self, caller: &Caller, notices: &[Notice]) -> Result<Job, Unheard> {
        let pods: Vec<&str> = notices
            .iter()
            .filter_map(|notice| Some(notice.place()?.1))
            .collect();
        if let Some(job) = self.with(|callers| callers.job(caller, &pods)) {
            return Ok(job);
        }
        let job = callers::job_of(&self.api, caller).await?;
        self.with(|callers| callers.found(caller, &job));
        Ok(job)
    }

    /// Returns the decision about each notice.
    async fn decide(&self, notices: &[Notice], job: &Job) -> Vec<Value> {
        let mut asked = Vec::new();
        for notice in notices {
            asked.push((notice, self.hand_on(notice, job).await));
        }
        let mut decisions = Vec::new();
        for (notice, handed) in asked {
            let decision = match handed {
                Err(refused) => {
                    self.counts.reported(refused);
                    format!("refused: {refused}")
                }
                Ok(answer) => {
                    self.counts.reported("taken");
                    match timeout(DECIDED_WITHIN, answer).await {
                        Ok(Ok(decision)) => decision,
                        _ => "not decided yet".to_owned(),
                    }
                }
            };
            decisions.push(json!({ "key": notice.key, "node": notice.node, "decision": decision }));
        }
        decisions
    }

    async fn hand_on(&self, notice: &Notice, job: &Job) -> Result<oneshot::Receiver<String>, &'static str> {
        let (machine, pod) = notice.place().ok_or("no-node")?;
        match job.pods.get(pod) {
            Some(runs_on) if runs_on == machine => {}
            // A notice that a finding has cleared is accepted even for a pod outside the job, because that pod may have
            // been deleted or replaced by one on another machine. Such a notice clears only findings that the same job
            // raised.
            _ if !notice.holds() => {}
            _ => return Err("not-its-job"),
        }
        let report = notice.report(&job.name, job.nodes()).ok_or("unknown-finding")?;
        let (answer, decided) = oneshot::channel();
        let said = Said {
            node: machine.to_owned(),
            report,
            answer,
        };
        self.reports.try_send(said).map_err(|_| "busy")?;
        Ok(decided)
    }
}

async fn verdicts(State(intake): State<Arc<Intake>>, headers: HeaderMap, body: Bytes) -> Response {
    if intake.until.borrow().is_none_or(|until| until <= Instant::now()) {
        intake.counts.reported("not-in-charge");
        return later(
            StatusCode::SERVICE_UNAVAILABLE,
            "another replica is the leader: retry",
            1,
        );
    }
    let Ok(_permit) = intake.room.acquire().await else {
        return later(StatusCode::SERVICE_UNAVAILABLE, "it ends", 1);
    };
    let caller = match intake.caller(&headers).await {
        Ok(caller) => caller,
        Err(unheard) => return refuse(&intake, unheard, false),
    };
    let parcel = match Parcel::read(&body) {
        Ok(parcel) => parcel,
        Err(malformed) => {
            intake.counts.reported("malformed");
            return (StatusCode::BAD_REQUEST, format!("{malformed}\n")).into_response();
        }
    };
    let job = match intake.job(&caller, &parcel.notices).await {
        Ok(job) => job,
        Err(unheard) => return refuse(&intake, unheard, true),
    };
    let decisions = intake.decide(&parcel.notices, &job).await;
    let is_busy = |decision: &Value| {
        let says = decision["decision"].as_str().unwrap_or_default();
        says == "refused: busy" || says == "not decided yet"
    };
    if decisions.iter().any(is_busy) {
        return later(
            StatusCode::SERVICE_UNAVAILABLE,
            "not all notices are decided: retry",
            5,
        );
    }
    let body = json!({ "version": 1, "job": job.name, "decisions": decisions });
    ([(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

fn refuse(intake: &Intake, unheard: Unheard, of_job: bool) -> Response {
    let (word, answer) = match unheard {
        Unheard::Token => (
            "token",
            (StatusCode::UNAUTHORIZED, "no valid token\n").into_response(),
        ),
        Unheard::NoPod(says) => (
            "no-pod",
            (StatusCode::FORBIDDEN, format!("{says}\n")).into_response(),
        ),
        Unheard::TooOften(seconds) => (
            "too-often",
            later(StatusCode::TOO_MANY_REQUESTS, "too often", seconds),
        ),
        Unheard::Later(failed) => {
            let mut unknown = intake.unknown[usize::from(of_job)]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let answer = later(StatusCode::SERVICE_UNAVAILABLE, &failed.to_string(), 5);
            let what = match of_job {
                false => "all reports are refused: senders cannot be authenticated",
                true => "all reports are refused: the senders' jobs cannot be determined",
            };
            unknown.came::<()>(Err(failed), what, &intake.counts, now_ms());
            ("unknown", answer)
        }
    };
    intake.counts.reported(word);
    answer
}

/// Returns a response that asks for a retry and closes the connection. The sender's next connection may reach another
/// replica.
fn later(status: StatusCode, says: &str, seconds: u64) -> Response {
    let headers = [
        (header::RETRY_AFTER, seconds.to_string()),
        (header::CONNECTION, "close".to_owned()),
    ];
    (status, headers, format!("{says}\n")).into_response()
}
