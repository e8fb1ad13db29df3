//! API errors. Each is a Status with the reason that clients check.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// An error response.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The HTTP status code.
    pub code: u16,
    /// Kubernetes' reason, which is one word.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
    /// Machine-readable details.
    pub details: Value,
}

/// The result of a request.
pub type Answer<T> = Result<T, Failure>;

impl Failure {
    /// Returns an error with this reason and its status code.
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

    /// Adds machine-readable details.
    pub fn with(mut self, details: Value) -> Failure {
        self.details = details;
        self
    }

    /// Returns the error for an object that does not exist.
    pub fn not_found(plural: &str, name: &str) -> Failure {
        Failure::new("NotFound", format!("{plural} \"{name}\" not found"))
            .with(json!({ "name": name, "kind": plural }))
    }

    /// Returns the error for a write that came after a concurrent one.
    pub fn conflict(plural: &str, name: &str, why: &str) -> Failure {
        Failure::new(
            "Conflict",
            format!("Operation cannot be fulfilled on {plural} \"{name}\": {why}"),
        )
        .with(json!({ "name": name, "kind": plural }))
    }

    /// Returns the Status object.
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
