//! Who is who in the cluster: a CA, a certificate for each program and node, and a kubeconfig for each client.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use super::layout::Layout;
use super::plan::{API_SERVICE, HOST_4, Plan};
use crate::whole_file;

/// What the API server's clients dial, from the host and from the nodes.
pub(crate) const API_SERVER: &str = "https://172.30.0.1:6443";

/// Where the cluster's keys and certificates are.
pub(crate) struct Identities {
    directory: PathBuf,
}

/// A client or server and the name that the API server knows it by.
struct Subject {
    file: String,
    name: String,
    group: Option<&'static str>,
    addresses: Vec<SanType>,
    /// Whether it is given a kubeconfig.
    client: bool,
}

impl Identities {
    pub(crate) fn of(layout: &Layout) -> Self {
        Self { directory: layout.pki() }
    }

    pub(crate) fn certificate(&self, name: &str) -> String {
        self.file(&format!("{name}.crt"))
    }

    pub(crate) fn key(&self, name: &str) -> String {
        self.file(&format!("{name}.key"))
    }

    pub(crate) fn kubeconfig(&self, name: &str) -> String {
        self.file(&format!("{name}.kubeconfig"))
    }

    /// The public half of the key that signs service accounts' tokens.
    pub(crate) fn accounts_public_key(&self) -> String {
        self.file("service-accounts.pub")
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Makes them all anew.
    pub(crate) fn make(&self, plan: &Plan) -> Result<()> {
        let ca = self.authority("ca", "kubernetes-ca")?;
        // What the API server itself vouches for to extension servers must not be told apart by name alone.
        let front = self.authority("front-proxy-ca", "front-proxy-ca")?;
        let accounts = KeyPair::generate().context("making a key")?;
        self.write("service-accounts.key", accounts.serialize_pem().as_bytes(), 0o600)?;
        self.write("service-accounts.pub", accounts.public_key_pem().as_bytes(), 0o644)?;
        self.issue(&front, &Subject::server("front-proxy", "front-proxy-client"))?;
        for subject in subjects(plan)? {
            self.issue(&ca, &subject)?;
        }
        Ok(())
    }

    fn authority(&self, file: &str, name: &str) -> Result<Issuer<'static, KeyPair>> {
        let key = KeyPair::generate().context("making a key")?;
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = distinguished(name, None);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = parameters.self_signed(&key).context("signing a CA's certificate")?;
        self.write(&format!("{file}.crt"), certificate.pem().as_bytes(), 0o644)?;
        self.write(&format!("{file}.key"), key.serialize_pem().as_bytes(), 0o600)?;
        Ok(Issuer::new(parameters, key))
    }

    fn issue(&self, ca: &Issuer<'static, KeyPair>, subject: &Subject) -> Result<()> {
        let key = KeyPair::generate().context("making a key")?;
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = distinguished(&subject.name, subject.group);
        parameters.subject_alt_names.clone_from(&subject.addresses);
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = parameters.signed_by(&key, ca).with_context(|| format!("signing for {}", subject.name))?;
        let (certificate, key) = (certificate.pem(), key.serialize_pem());
        self.write(&format!("{}.crt", subject.file), certificate.as_bytes(), 0o644)?;
        self.write(&format!("{}.key", subject.file), key.as_bytes(), 0o600)?;
        if subject.client {
            let ca = fs::read_to_string(self.certificate("ca")).context("reading the CA's certificate")?;
            let text = kubeconfig(&ca, &certificate, &key);
            self.write(&format!("{}.kubeconfig", subject.file), text.as_bytes(), 0o600)?;
        }
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8], mode: u32) -> Result<()> {
        whole_file::write(&self.directory.join(name), bytes, mode)
    }
}

impl Subject {
    fn server(file: &str, name: &str) -> Self {
        Self { file: file.to_owned(), name: name.to_owned(), group: None, addresses: Vec::new(), client: false }
    }

    fn client(file: &str, name: &str) -> Self {
        Self { client: true, ..Self::server(file, name) }
    }
}

fn subjects(plan: &Plan) -> Result<Vec<Subject>> {
    let mut api = Subject::server("apiserver", "kube-apiserver");
    api.addresses =
        [IpAddr::V4(API_SERVICE), IpAddr::V4(HOST_4), IpAddr::V4(Ipv4Addr::LOCALHOST)].map(SanType::IpAddress).into();
    for name in [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ] {
        api.addresses.push(SanType::DnsName(name.try_into().context("a DNS name")?));
    }
    let masters = Some("system:masters");
    let mut all = vec![
        api,
        Subject { group: masters, ..Subject::server("apiserver-kubelet", "kube-apiserver-kubelet-client") },
        Subject { group: masters, ..Subject::client("admin", "admin") },
        Subject::client("controller-manager", "system:kube-controller-manager"),
        Subject::client("scheduler", "system:kube-scheduler"),
        Subject::client("proxy", "system:kube-proxy"),
    ];
    for node in plan.nodes() {
        let name = node.name();
        let addresses = vec![
            SanType::DnsName(name.clone().try_into().context("a DNS name")?),
            SanType::IpAddress(node.address_4().into()),
            SanType::IpAddress(node.address_6().into()),
        ];
        let user = format!("system:node:{name}");
        all.push(Subject { group: Some("system:nodes"), addresses, ..Subject::client(&name, &user) });
    }
    Ok(all)
}

fn distinguished(name: &str, group: Option<&str>) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    if let Some(group) = group {
        distinguished.push(DnType::OrganizationName, group);
    }
    distinguished
}

/// One file that holds all it needs, so that it can be copied.
fn kubeconfig(ca: &str, certificate: &str, key: &str) -> String {
    let [ca, certificate, key] = [ca, certificate, key].map(|pem| BASE64_STANDARD.encode(pem));
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: leno-cluster\n  cluster: {{server: \"{API_SERVER}\", certificate-authority-data: {ca}}}\n\
         users:\n\
         - name: leno-cluster\n  user: {{client-certificate-data: {certificate}, client-key-data: {key}}}\n\
         contexts:\n\
         - name: leno-cluster\n  context: {{cluster: leno-cluster, user: leno-cluster}}\n\
         current-context: leno-cluster\n"
    )
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
