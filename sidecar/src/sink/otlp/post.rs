//! Sends one request to a receiver.

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message;
use ureq::Agent;

use super::{Outcome, Receiver};
use crate::sink::notify::http::agent;

/// Status codes after which a receiver may accept the same request later
/// (<https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes>).
const LATER: [u16; 4] = [429, 502, 503, 504];
/// Maximum size of an answer.
const ANSWER: u64 = 65_536;

/// HTTP client with the system's certificates.
#[derive(Debug)]
pub(super) struct Client(Agent);

impl Client {
    pub(super) fn new() -> Client {
        Client(agent())
    }

    /// Sends a request within `left`. Returns the number of rejected values, or the error. The error contains neither
    /// the headers nor the path of the request.
    pub(super) fn send(
        &self,
        to: &Receiver,
        request: &ExportMetricsServiceRequest,
        left: Duration,
    ) -> Result<u64, (Outcome, String)> {
        let within = to.timeout.min(left);
        if within.is_zero() {
            return Err((Outcome::Timeout, "the job is over".to_owned()));
        }
        let mut body = request.encode_to_vec();
        let post = self.0.post(to.url()).config();
        let mut post = post
            .timeout_global(Some(within))
            .timeout_connect(Some(within))
            .build()
            .header("Content-Type", "application/x-protobuf");
        if to.is_packed
            && let Some(packed) = packed(&body)
        {
            body = packed;
            post = post.header("Content-Encoding", "gzip");
        }
        for (name, value) in to.headers() {
            post = post.header(name, value);
        }
        match post.send(&body[..]) {
            Ok(mut answer) if answer.status().is_success() => {
                let text = answer.body_mut().with_config().limit(ANSWER).read_to_vec();
                // An invalid answer does not mean that the values were rejected.
                let said = ExportMetricsServiceResponse::decode(&text.unwrap_or_default()[..]);
                let partly = said.unwrap_or_default().partial_success;
                let rejected = partly.map_or(0, |partly| partly.rejected_data_points);
                Ok(u64::try_from(rejected).unwrap_or(0))
            }
            // Do not use the body of the answer, because it may echo the request.
            Ok(answer) => {
                let status = answer.status().as_u16();
                let outcome = if LATER.contains(&status) {
                    Outcome::Unreachable
                } else {
                    Outcome::Refused
                };
                Err((outcome, format!("status {status}")))
            }
            Err(ureq::Error::Timeout(_)) => {
                let why = format!("no answer in {:.1} s", within.as_secs_f64());
                Err((Outcome::Timeout, why))
            }
            Err(ureq::Error::BadUri(_) | ureq::Error::Http(_)) => {
                Err((Outcome::Unreachable, "its address is invalid".to_owned()))
            }
            Err(error) => Err((Outcome::Unreachable, error.to_string())),
        }
    }
}

fn packed(body: &[u8]) -> Option<Vec<u8>> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(body).ok()?;
    packer.finish().ok()
}
