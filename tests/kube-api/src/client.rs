//! The tests' client. It is kube's client, but returns responses as JSON for any status code.

use std::str::FromStr as _;

use anyhow::Context as _;
use axum::http::{Method, Request, Uri};
use kube::client::Body;
use kube::config::AuthInfo;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::Server;

/// The client; see the module documentation.
#[derive(Clone)]
pub struct Caller {
    /// Used directly for responses that are not JSON, such as watches.
    pub client: kube::Client,
}

impl Caller {
    /// Creates a client with this token.
    ///
    /// # Errors
    /// Fails if the client cannot be created.
    pub fn new(server: &Server, token: &str) -> anyhow::Result<Caller> {
        let mut config = kube::Config::new(Uri::from_str(&format!("https://{}", server.address))?);
        config.root_cert = Some(vec![
            CertificateDer::from_pem_slice(server.ca.as_bytes())?.to_vec(),
        ]);
        // Disables retries, because tests check each response, including those that ask to retry.
        config.default_retry = false;
        config.auth_info = AuthInfo {
            token: Some(token.to_owned().into()),
            ..AuthInfo::default()
        };
        Ok(Caller {
            client: kube::Client::try_from(config)?,
        })
    }

    /// Sends a request. Returns the status code and the body.
    ///
    /// # Errors
    /// Fails if there is no response, or if it is not JSON.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<(u16, Value)> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(Body::from(body))?;
        let response = self.client.send(request).await?;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await?;
        let text = String::from_utf8_lossy(&bytes);
        Ok((
            code,
            serde_json::from_slice(&bytes).with_context(|| text.into_owned())?,
        ))
    }

    async fn json(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        self.ask(method, path, "application/json", body.to_string().into_bytes())
            .await
    }

    /// Sends a GET request.
    ///
    /// # Errors
    /// The same as for [`Caller::ask`].
    pub async fn get(&self, path: &str) -> anyhow::Result<(u16, Value)> {
        self.ask(Method::GET, path, "application/json", Vec::new()).await
    }

    /// Sends a POST request.
    ///
    /// # Errors
    /// The same as for [`Caller::ask`].
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        self.json(Method::POST, path, body).await
    }

    /// Sends a PUT request.
    ///
    /// # Errors
    /// The same as for [`Caller::ask`].
    pub async fn put(&self, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        self.json(Method::PUT, path, body).await
    }

    /// Sends a PATCH request with a merge patch.
    ///
    /// # Errors
    /// The same as for [`Caller::ask`].
    pub async fn merge(&self, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        let body = body.to_string().into_bytes();
        self.ask(Method::PATCH, path, "application/merge-patch+json", body)
            .await
    }

    /// Sends a DELETE request.
    ///
    /// # Errors
    /// The same as for [`Caller::ask`].
    pub async fn delete(&self, path: &str, options: &Value) -> anyhow::Result<(u16, Value)> {
        self.json(Method::DELETE, path, options).await
    }

    /// Requests a new token of a ServiceAccount, which is created if needed.
    ///
    /// # Errors
    /// The same as for [`Caller::ask`].
    pub async fn token(&self, namespace: &str, account: &str, spec: &Value) -> anyhow::Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        self.post(&path, &json!({ "metadata": { "name": account } }))
            .await?;
        let request =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec });
        let (_, answer) = self.post(&format!("{path}/{account}/token"), &request).await?;
        answer["status"]["token"]
            .as_str()
            .map(str::to_owned)
            .context("no token")
    }
}
