//! What goes wrong, as the API says it: a Status with a reason that clients look at.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// An answer that is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// HTTP's.
    pub code: u16,
    /// Kubernetes': one word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// What machines may want to know.
    pub details: Value,
}

/// What was asked, or why not.
pub type Answer<T> = Result<T, Failure>;

impl Failure {
    /// Of this reason, whose code follows.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Failure {
        let code = match reason {
            "BadRequest" => 400,
            "Unauthorized" => 401,
            "Forbidden" => 403,
            "NotFound" => 404,
            "MethodNotAllowed" => 405,
            "AlreadyExists" | "Conflict" => 409,
            "Expired" => 410,
            "UnsupportedMediaType" => 415,
            "Invalid" => 422,
            "TooManyRequests" => 429,
            "ServiceUnavailable" => 503,
            _ => 500,
        };
        Failure {
            code,
            reason,
            message: message.into(),
            details: json!({}),
        }
    }

    /// With what machines may want to know.
    pub fn with(mut self, details: Value) -> Failure {
        self.details = details;
        self
    }

    /// There is no such object.
    pub fn not_found(plural: &str, name: &str) -> Failure {
        Failure::new("NotFound", format!("{plural} \"{name}\" not found"))
            .with(json!({ "name": name, "kind": plural }))
    }

    /// Somebody was faster.
    pub fn conflict(plural: &str, name: &str, why: &str) -> Failure {
        Failure::new(
            "Conflict",
            format!("Operation cannot be fulfilled on {plural} \"{name}\": {why}"),
        )
        .with(json!({ "name": name, "kind": plural }))
    }

    /// As an object.
    pub fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "details": self.details, "code": self.code,
        })
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (code, kind, self.status().to_string()).into_response()
    }
}
