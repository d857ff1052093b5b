package cli

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tidemark/internal/tlsconf"
)

// Folders of cert cluster that are not names of nodes.
const (
	operatorName = "operator" // for the administrator's certificate, and its holder's name
	anyName      = "any"      // for certificates that are valid for nodes of every name
)

// maxCertNodes limits the nodes of one command.
const maxCertNodes = 1000

// nodeRoles are the roles with a certificate in a node's folder, in files of these names.
var nodeRoles = []tlsconf.Role{tlsconf.Manager, tlsconf.Projector, tlsconf.Indexer}

// certsOf returns the files of a role in a folder made by cert cluster.
func certsOf(dir string, role tlsconf.Role) tlsconf.Files {
	if dir == "" {
		return tlsconf.Files{}
	}
	return tlsconf.Files{CA: filepath.Join(dir, tlsconf.CAFile), Cert: filepath.Join(dir, string(role)+".pem"),
		Key: filepath.Join(dir, string(role)+"-key.pem")}
}

// clusterCert is a node and its host names and addresses. The name tlsconf.AnyID stands for every node.
type clusterCert struct {
	name  string
	hosts []string
}

// folder returns the name of the node's folder.
func (n clusterCert) folder() string {
	if n.name == tlsconf.AnyID {
		return anyName
	}
	return n.name
}

type clusterCerts struct {
	out      string
	validity time.Duration
	replace  bool
}

func certCluster(s Streams) *cobra.Command {
	f := &clusterCerts{}
	cmd := &cobra.Command{Use: "cluster [NODE=HOST[,HOST...] ...]",
		Short: "Make the certificates of all nodes and of an operator, with a CA", ValidArgsFunction: noFiles,
		Long: `Makes in --out a CA (if there is none), a folder for each NODE with the certificates of a manager, a projector
and an indexer of that name, and the folder operator with the certificate of an administrator. Each folder is a
--certs-dir: for tidemark node on that machine, and for the operator's commands. HOSTs are the names and addresses at
which others reach the node; localhost is added; without =HOST the host is NODE itself. Do not copy ca-key.pem to the
nodes. With NODE * the certificates, in the folder any, are valid for nodes of any name: for machines that come and go.

To add a node later, run the same command with that NODE. --replace without NODEs makes all certificates in --out anew,
for the same hosts: copy the folders again, and running processes load the new files.`,
		Example: "  tidemark cert cluster --out ./certs n1=10.0.0.1 n2=10.0.0.2,n2.example.org n3=10.0.0.3\n" +
			"  tidemark cert cluster --out ./certs --replace\n  tidemark cert cluster --out ./certs " +
			"'*=*.tidemark,*.tidemark.default.svc'",
		RunE: func(_ *cobra.Command, args []string) error { return f.run(s, args) }}
	fl := cmd.Flags()
	fl.StringVar(&f.out, "out", "", "`FOLDER` to write the CA and a folder for each node to")
	fl.DurationVar(&f.validity, "validity", tlsconf.LeafValidity, "how long the certificates are valid, except the CA's")
	fl.BoolVar(&f.replace, "replace", false, "replace existing certificates: of the NODEs, or of all")
	return cmd
}

func (f *clusterCerts) run(s Streams, args []string) error {
	if f.out == "" || f.validity <= 0 {
		return usage("tidemark cert cluster needs --out, and a --validity above 0")
	}
	renew := len(args) == 0
	nodes, err := f.nodes(args)
	if err != nil {
		return err
	}
	ca, err := loadOrMakeCA(f.out, renew)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := f.node(s, ca, n); err != nil {
			return err
		}
	}
	if err := f.operator(s, ca, renew); err != nil {
		return err
	}
	return reportCap(s, ca, f.validity)
}

// node issues the certificates of one node.
func (f *clusterCerts) node(s Streams, ca *tlsconf.CA, n clusterCert) error {
	dir := filepath.Join(f.out, n.folder())
	for _, role := range nodeRoles {
		if _, err := ca.Issue(dir, string(role), tlsconf.Request{Peer: tlsconf.Peer{Role: role, ID: n.name}, Hosts: n.hosts,
			Validity: f.validity, Replace: f.replace}); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(s.Out, "%s\t%s\n", dir, strings.Join(n.hosts, ","))
	return err
}

// operator issues the administrator's certificate, unless it exists and is to be kept.
func (f *clusterCerts) operator(s Streams, ca *tlsconf.CA, renew bool) error {
	dir := filepath.Join(f.out, operatorName)
	if _, err := os.Stat(certsOf(dir, tlsconf.Admin).Cert); err == nil && !renew {
		return nil
	}
	if _, err := ca.Issue(dir, string(tlsconf.Admin), tlsconf.Request{Validity: f.validity, Replace: renew,
		Peer: tlsconf.Peer{Role: tlsconf.Admin, ID: operatorName}}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.Out, "%s\tadministrator\n", dir)
	return err
}

// free returns an error if a node has certificates already, before anything is issued.
func (f *clusterCerts) free(nodes []clusterCert) error {
	for _, n := range nodes {
		for _, role := range nodeRoles {
			files := certsOf(filepath.Join(f.out, n.folder()), role)
			for _, path := range []string{files.Cert, files.Key} {
				if _, err := os.Lstat(path); err == nil {
					return fmt.Errorf("%w: %s; omit %s to keep it, or replace it with --replace", tlsconf.ErrExists, path,
						n.name)
				}
			}
		}
	}
	return nil
}

// nodes returns the nodes of the arguments; without arguments, those that have certificates in --out.
func (f *clusterCerts) nodes(args []string) ([]clusterCert, error) {
	if len(args) == 0 {
		if !f.replace {
			return nil, usage("tidemark cert cluster needs the nodes, like n1=10.0.0.1; or --replace to renew those in --out")
		}
		return certified(f.out)
	}
	nodes, err := parseClusterCerts(args)
	if err != nil || f.replace {
		return nodes, err
	}
	return nodes, f.free(nodes)
}

// parseClusterCerts parses NODE=HOST,HOST.
func parseClusterCerts(args []string) (nodes []clusterCert, err error) {
	if len(args) > maxCertNodes {
		return nil, usage("%d nodes: want at most %d in one command", len(args), maxCertNodes)
	}
	for _, arg := range args {
		name, list, found := strings.Cut(arg, "=")
		if !found {
			list = name
		}
		hosts := strings.Split(list, ",")
		for i, h := range hosts {
			if hosts[i] = strings.Trim(strings.TrimSpace(h), "[]"); !certHost(hosts[i]) {
				return nil, usage("%q: want NODE=HOST[,HOST...] with names or addresses, without ports", arg)
			}
		}
		if name != tlsconf.AnyID && !nodeName(name) {
			return nil, usage("%q: want NODE=HOST[,HOST...]; NODE has 1 to %d letters, digits or any of . _ -, does not "+
				"begin with a dot, and is neither %s nor %s; or it is * for every node", arg, maxNodeName, operatorName, anyName)
		}
		if name == tlsconf.AnyID && !found {
			return nil, usage("%q: want *=HOST[,HOST...], with the names that others dial, like *.tidemark.example.org", arg)
		}
		if slices.ContainsFunc(nodes, func(n clusterCert) bool { return n.name == name }) {
			return nil, usage("node %s is given twice", name)
		}
		nodes = append(nodes, clusterCert{name, reachable(hosts)})
	}
	return nodes, nil
}

// certHost reports whether a certificate can be issued for a host: an address, or a name, whose first label may be *.
func certHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	for i, label := range strings.Split(host, ".") {
		if wildcard := label == "*" && i == 0; !wildcard && !hostLabel(label) {
			return false
		}
	}
	return len(host) <= 253
}

// hostLabel reports whether a label of a host name has 1 to 63 permitted characters.
func hostLabel(label string) bool {
	return label != "" && len(label) <= 63 && !strings.ContainsFunc(label, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	})
}

// reachable adds the names of the local machine, for checks on it.
func reachable(hosts []string) []string {
	for _, own := range []string{"localhost", "127.0.0.1"} {
		if !slices.Contains(hosts, own) {
			hosts = append(hosts, own)
		}
	}
	return hosts
}

// certified returns the nodes with a folder in out, with the hosts of their present certificates.
func certified(out string) (nodes []clusterCert, err error) {
	entries, err := os.ReadDir(out)
	if err != nil {
		return nil, usage("--out: %v", err)
	}
	for _, e := range entries {
		path := certsOf(filepath.Join(out, e.Name()), tlsconf.Indexer).Cert
		cert, err := readCertificate(path)
		if errors.Is(err, fs.ErrNotExist) || !e.IsDir() {
			if other := otherRole(filepath.Join(out, e.Name())); other != "" { // it would otherwise be left unchanged silently
				return nil, fmt.Errorf("%s exists but lacks an indexer's certificate, which lists the hosts: make all "+
					"certificates of %s again with --replace %[2]s=HOST", other, e.Name())
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		peer, err := tlsconf.PeerOf(cert)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		n := clusterCert{name: peer.ID, hosts: cert.DNSNames}
		if n.folder() != e.Name() {
			return nil, fmt.Errorf("%s is for node %s, whose folder is %s", path, n.name, n.folder())
		}
		for _, ip := range cert.IPAddresses {
			n.hosts = append(n.hosts, ip.String())
		}
		nodes = append(nodes, n)
	}
	if len(nodes) == 0 {
		return nil, usage("--out %s has no folder of a node: give the nodes, like n1=10.0.0.1", out)
	}
	return nodes, nil
}

// otherRole returns a certificate of another role in a node's folder, "" if there is none.
func otherRole(dir string) string {
	for _, role := range nodeRoles {
		path := certsOf(dir, role).Cert
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// readCertificate reads the first certificate of a PEM file.
func readCertificate(path string) (*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%w: %s has no certificate in PEM format", tlsconf.ErrFiles, path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", tlsconf.ErrFiles, path, err)
	}
	return cert, nil
}

// loadOrMakeCA reads the CA of a folder. It creates one if the folder has no part of one, unless mustExist is set.
func loadOrMakeCA(dir string, mustExist bool) (*tlsconf.CA, error) {
	ca, err := tlsconf.LoadCA(dir)
	if err == nil || !errors.Is(err, fs.ErrNotExist) || mustExist {
		return ca, err
	}
	for _, name := range []string{tlsconf.CAFile, tlsconf.CAKeyFile} {
		if _, there := os.Lstat(filepath.Join(dir, name)); there == nil {
			return nil, fmt.Errorf("%s has only a part of a CA: %w", dir, err)
		}
	}
	return tlsconf.CreateCA(dir, "tidemark CA", tlsconf.CAValidity)
}
