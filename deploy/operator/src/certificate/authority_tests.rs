use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{RootCertStore, crypto::ring::default_provider};

use super::*;

const LIFE: u64 = 9000;

fn terms() -> Terms {
    Terms {
        host: "paceline.ns.svc".into(),
        life: LIFE,
        settle_most: Duration::from_secs(60),
    }
}

/// Returns true if a client with this bundle accepts this certificate at this time.
fn is_taken(bundle: &str, cert: &str, now: u64) -> bool {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(root.unwrap()).unwrap();
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()))
        .build()
        .unwrap();
    let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
    let name = ServerName::try_from("paceline.ns.svc").unwrap();
    let at = UnixTime::since_unix_epoch(Duration::from_secs(now));
    verifier.verify_server_cert(&cert, &[], &name, &[], at).is_ok()
}

/// Simulates ten certificate lifetimes in steps of a twentieth. The API server lags by one step and a replica by two.
#[test]
fn whoever_lags_still_trusts_what_is_shown() {
    let mut now = 1_800_000_000;
    let mut state: Option<State> = None;
    let (mut bundles, mut shown) = (Vec::new(), Vec::new());
    let (mut authorities, mut certificates) = (0, 0);
    for _ in 0..200 {
        let is_trusted = bundles.last() == state.as_ref().map(State::bundle).as_ref();
        while let Some(change) = step(state.as_ref(), &terms(), now, is_trusted).unwrap() {
            match change.what {
                "authority" => authorities += 1,
                "certificate" => certificates += 1,
                _ => {}
            }
            assert_eq!(State::read(&change.state.data()).unwrap(), change.state);
            let is_first = state.is_none();
            state = Some(change.state);
            if !is_first {
                break;
            }
        }
        let current = state.as_ref().unwrap();
        bundles.push(current.bundle());
        shown.push(current.cert.clone());
        // Each combination of a recent bundle and a recent certificate is accepted.
        for bundle in bundles.iter().rev().take(2) {
            for cert in shown.iter().rev().take(3) {
                assert!(is_taken(bundle, cert, now), "at {now}");
            }
        }
        assert!(current.old.len() <= 2, "what has ended is forgotten");
        now += LIFE / 20;
    }
    // In 10 lifetimes, a new authority is created every 4/3 lifetimes. Certificates are renewed more often.
    assert!((6..=9).contains(&authorities), "{authorities}");
    assert!(certificates > authorities, "{certificates}");
}

#[test]
fn a_successor_does_not_sign_before_it_is_trusted() {
    let start = 1_800_000_000;
    let first = step(None, &terms(), start, false).unwrap().unwrap().state;
    assert_eq!(step(Some(&first), &terms(), start + 10, true).unwrap(), None);
    let late = start + LIFE * 3 / 2;
    let announced = step(Some(&first), &terms(), late, true).unwrap().unwrap().state;
    assert_eq!(announced.cert, first.cert);
    assert!(announced.bundle().starts_with(&first.bundle()) && announced.bundle() != first.bundle());
    // The new authority does not sign before the caBundle contains it, and not immediately afterwards.
    assert!(
        step(Some(&announced), &terms(), late + LIFE / 10, false)
            .unwrap()
            .is_none_or(|change| change.state.signer == first.signer)
    );
    assert!(
        step(Some(&announced), &terms(), late, true)
            .unwrap()
            .is_none_or(|change| change.state.signer == first.signer)
    );
    let signed = step(Some(&announced), &terms(), late + LIFE / 10, true)
        .unwrap()
        .unwrap()
        .state;
    assert_ne!(signed.signer, first.signer);
    assert!(is_taken(&announced.bundle(), &signed.cert, late + LIFE / 10));
    assert!(
        is_taken(&signed.bundle(), &first.cert, first.ends - 1),
        "what others still show"
    );
}

#[test]
fn what_is_not_ours_is_not_read() {
    assert!(State::read(&Value::Null).is_err());
    let good = step(None, &terms(), 1_800_000_000, false).unwrap().unwrap().state;
    let mut data = good.data();
    data["notes.json"] = json!("!!");
    assert!(State::read(&data).is_err());
}
