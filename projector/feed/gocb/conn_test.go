package gocb

import (
	"crypto/tls"
	"testing"

	"github.com/couchbase/gocbcore/v10"
)

// gocbcore tells its password to all managers that a map names: it is given none for those that nobody named, unless
// they prove who they are, and none at all where no manager was named.
func TestWhoIsToldThePassword(t *testing.T) {
	checked, anyone := &tls.Config{}, &tls.Config{InsecureSkipVerify: true} //nolint:gosec // only looked at
	for _, tt := range []struct {
		name     string
		service  gocbcore.ServiceType
		endpoint string
		managers []string
		tls      *tls.Config
		told     bool
	}{
		{"a node", gocbcore.MemdService, "10.0.0.2:11210", nil, nil, true},
		{"who was named", gocbcore.MgmtService, "http://10.0.0.1:8091", []string{"10.0.0.1:8091"}, nil, true},
		{"whom a map names", gocbcore.MgmtService, "http://10.0.0.2:8091", []string{"10.0.0.1:8091"}, nil, false},
		{"whom a map names, checked", gocbcore.MgmtService, "https://10.0.0.2:18091", []string{"10.0.0.1:18091"}, checked,
			true},
		{"whom a map names, unchecked", gocbcore.MgmtService, "https://10.0.0.2:18091", []string{"10.0.0.1:18091"}, anyone,
			false},
		{"no manager was named", gocbcore.MgmtService, "https://10.0.0.2:18091", nil, checked, false},
		{"no address", gocbcore.MgmtService, "http://[::1", []string{"10.0.0.1:8091"}, nil, false},
	} {
		who := credentials{user: "u", password: "secret", tls: tt.tls, managers: tt.managers}
		got, err := who.Credentials(gocbcore.AuthCredsRequest{Service: tt.service, Endpoint: tt.endpoint})
		if err != nil || len(got) != 1 || (got[0].Password == "secret") != tt.told || (got[0].Username == "u") != tt.told {
			t.Errorf("%s: %+v %v", tt.name, got, err)
		}
	}
}
