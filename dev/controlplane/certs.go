package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// leaves are the certificates that the authority signs: the file's name, whom it speaks for, and whether it serves.
var leaves = []struct {
	file         string
	user         string
	groups       []string
	serverAsWell bool
}{
	{"server", "kube-apiserver", nil, true},
	{"kubelet-client", "kube-apiserver-kubelet-client", []string{"system:masters"}, false},
	{"admin", "admin", []string{"system:masters"}, false},
	{"kube-controller-manager", "system:kube-controller-manager", nil, false},
	{"kube-scheduler", "system:kube-scheduler", nil, false},
	{"kubelet", "system:node:node-0", []string{"system:nodes"}, false},
	{"kube-proxy", "system:kube-proxy", nil, false},
}

// runCerts writes every key and certificate that a control plane needs, in 0.1 s and without openssl. The API server is
// known as 127.0.0.1 and by the addresses that are given.
func runCerts() int {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: certs DIR [ADDRESS]...")
		return 2
	}
	addresses := []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, text := range os.Args[2:] {
		address := net.ParseIP(text)
		if address == nil {
			fmt.Fprintln(os.Stderr, "certs: no IP address:", text)
			return 2
		}
		addresses = append(addresses, address)
	}
	if err := writeCerts(os.Args[1], addresses); err != nil {
		fmt.Fprintln(os.Stderr, "certs:", err)
		return 1
	}
	return 0
}

func writeCerts(dir string, addresses []net.IP) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	authority, err := newAuthority(dir)
	if err != nil {
		return err
	}
	for _, leaf := range leaves {
		var served []net.IP
		if leaf.serverAsWell {
			served = addresses
		}
		if err := authority.sign(dir, leaf.file, leaf.user, leaf.groups, served); err != nil {
			return err
		}
	}
	return writeServiceAccountKey(dir)
}

// authority is the certificate authority of one control plane.
type authority struct {
	key  crypto.Signer
	cert *x509.Certificate
}

func newAuthority(dir string) (*authority, error) {
	key, err := newKey(dir, "ca")
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(public)
	template, err := newTemplate("controlplane-ca", nil)
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.SubjectKeyId = id[:20]
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{key, cert}, writePEM(dir, "ca.crt", "CERTIFICATE", der)
}

// sign writes FILE.key and FILE.crt, which is a server's as well if there are addresses that it serves at.
func (a *authority) sign(dir, file, user string, groups []string, served []net.IP) error {
	key, err := newKey(dir, file)
	if err != nil {
		return err
	}
	template, err := newTemplate(user, groups)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(served) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		template.DNSNames = []string{
			"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local",
		}
		template.IPAddresses = served
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	return writePEM(dir, file+".crt", "CERTIFICATE", der)
}

func newTemplate(name string, groups []string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name, Organization: groups},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.AddDate(10, 0, 0),
		BasicConstraintsValid: true,
	}, nil
}

func newKey(dir, name string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(dir, name+".key", "EC PRIVATE KEY", der)
}

// writeServiceAccountKey writes the pair that signs the tokens of ServiceAccounts.
func writeServiceAccountKey(dir string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	if err := writePEM(dir, "sa.key", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)); err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	return writePEM(dir, "sa.pub", "PUBLIC KEY", public)
}

func writePEM(dir, name, kind string, der []byte) error {
	block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	return os.WriteFile(filepath.Join(dir, name), block, 0o600)
}
