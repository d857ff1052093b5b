package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tidemark/internal/tlsconf"
)

func newCert(s Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "cert", Short: "Make a CA and certificates", Args: noArgs,
		Long: `Makes a CA and certificates for nodes and users: enough for development, and for clusters without another CA.
Keys are ECDSA P-256, in files that only their owner can read. docs/security.md explains how certificates are used and
replaced.`,
		Example: "  tidemark cert cluster --out ./certs n1=10.0.0.1 n2=10.0.0.2 n3=10.0.0.3\n  tidemark cert ca --out " +
			"./certs\n  tidemark cert node --out ./certs --role manager --id m1 --host " +
			"10.0.0.1",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(certCluster(s), certCA(s), certNode(s), certUser(s))
	return cmd
}

func certCA(s Streams) *cobra.Command {
	var out, name string
	var validity time.Duration
	cmd := &cobra.Command{Use: "ca", Short: "Make a CA", Args: noArgs, Example: "  tidemark cert ca --out ./certs",
		RunE: func(*cobra.Command, []string) error {
			if out == "" || validity <= 0 {
				return usage("tidemark cert ca needs --out, and a --validity above 0")
			}
			if _, err := tlsconf.CreateCA(out, name, validity); errors.Is(err, tlsconf.ErrExists) {
				return fmt.Errorf("%w; use another folder: a CA is never overwritten", err)
			} else if err != nil {
				return err
			}
			_, err := fmt.Fprintf(s.Out, "%s/%s\n%s/%s\n", out, tlsconf.CAFile, out, tlsconf.CAKeyFile)
			return err
		}}
	cmd.Flags().StringVar(&out, "out", "", "`FOLDER` to write "+tlsconf.CAFile+" and "+tlsconf.CAKeyFile+" to")
	cmd.Flags().StringVar(&name, "name", "tidemark CA", "name in the certificate")
	cmd.Flags().DurationVar(&validity, "validity", tlsconf.CAValidity, "how long it is valid")
	return cmd
}

// issueFlags are the flags common to all certificates.
type issueFlags struct {
	ca, out, file string
	req           tlsconf.Request
}

func (f *issueFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.out, "out", "", "`FOLDER` to write the certificate and its key to")
	fl.StringVar(&f.ca, "ca", "", "`FOLDER` of the CA (default: that of --out)")
	fl.StringVar(&f.file, "name", "", "`NAME` of the files without .pem (default: the id)")
	fl.DurationVar(&f.req.Validity, "validity", tlsconf.LeafValidity, "how long it is valid")
	fl.BoolVar(&f.req.Replace, "replace", false, "replace existing files: running processes load the new ones")
}

func (f *issueFlags) run(s Streams) error {
	if f.out == "" || f.req.Validity <= 0 {
		return usage("tidemark cert needs --out, and a --validity above 0")
	}
	if f.ca == "" {
		f.ca = f.out
	}
	if f.file == "" {
		f.file = f.req.Peer.ID
	}
	if f.file == tlsconf.AnyID {
		f.file = string(f.req.Peer.Role)
	}
	ca, err := tlsconf.LoadCA(f.ca)
	if err != nil {
		return err
	}
	files, err := ca.Issue(f.out, f.file, f.req)
	if errors.Is(err, tlsconf.ErrExists) {
		return fmt.Errorf("%w; use another folder, or replace it with --replace", err)
	} else if err != nil {
		return err
	}
	if _, err = fmt.Fprintf(s.Out, "%s\n%s\n", files.Cert, files.Key); err != nil {
		return err
	}
	return reportCap(s, ca, f.req.Validity)
}

// reportCap reports certificates that expire sooner than requested because their CA does.
func reportCap(s Streams, ca *tlsconf.CA, validity time.Duration) error {
	end, sooner := ca.Cap(validity)
	if !sooner {
		return nil
	}
	_, err := fmt.Fprintf(s.Err, "the CA expires at %s, and with it the certificates made now, before --validity %s is "+
		"over: have another CA on all nodes by then\n", end.UTC().Format(time.RFC3339), validity)
	return err
}

func certNode(s Streams) *cobra.Command {
	f := &issueFlags{}
	var role string
	cmd := &cobra.Command{Use: "node", Short: "Make the certificate of a manager, projector, indexer or KV node",
		Args: noArgs,
		Long: `Makes the certificate of one process. The certificate contains the role and the id as the URI
tidemark://role/id; the id is the process's --id, or * for every id of the role. --host lists the names and addresses
that users connect to: managers and KV nodes need them.`,
		Example: "  tidemark cert node --out ./certs --role manager --id m1 --host m1.example.org,10.0.0.1",
		RunE: func(*cobra.Command, []string) error {
			switch f.req.Peer.Role = tlsconf.Role(role); f.req.Peer.Role {
			case tlsconf.Manager, tlsconf.Projector, tlsconf.Indexer, tlsconf.KV:
				return f.run(s)
			}
			return usage("--role %q: want manager, projector, indexer or kv", role)
		}}
	f.add(cmd)
	cmd.Flags().StringVar(&role, "role", "", "manager, projector, indexer or kv")
	cmd.Flags().StringVar(&f.req.Peer.ID, "id", "", "the process's --id, or * for any")
	cmd.Flags().StringSliceVar(&f.req.Hosts, "host", nil, "names and addresses that users connect to")
	return cmd
}

func certUser(s Streams) *cobra.Command {
	f := &issueFlags{}
	var admin bool
	cmd := &cobra.Command{Use: "user NAME", Short: "Make the certificate of a user", Args: exactArgs("NAME"),
		Long: `Makes a certificate that identifies a user of the cluster instead of a password; the user's role is stored in
the cluster. With --admin its holder is an administrator, whichever users the cluster has: use it when passwords are
lost.`,
		Example: "  tidemark cert user alice --out ./certs\n  tidemark cert user operator --admin --out ./certs",
		RunE: func(_ *cobra.Command, args []string) error {
			f.req.Peer = tlsconf.Peer{Role: tlsconf.User, ID: args[0]}
			if admin {
				f.req.Peer.Role = tlsconf.Admin
			}
			return f.run(s)
		}}
	f.add(cmd)
	cmd.Flags().BoolVar(&admin, "admin", false, "an administrator, whichever users the cluster has")
	return cmd
}
