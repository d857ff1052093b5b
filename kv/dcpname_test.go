package kv

import (
	"bytes"
	"encoding/binary"
	"testing"

	"tidemark/kv/mcbp"
	"tidemark/kv/server"
)

// DCP connection names are per user: a connection of another user with the same name ends nothing, a second one of
// the same user ends the first.
func TestDCPNameIsOfItsUser(t *testing.T) {
	t.Parallel()
	n, _ := runNode(t, testConfig(t.TempDir()))
	partsOf(t, n)
	users{t, n}.set("somebody", "data_dcp_reader[world:s:c]")
	const name = "replication:kv1->kv2:1"
	alive := request(mcbp.OpGetClusterConfig, 0, nil, nil, nil)
	first := openDCP(t, n.MemcachedAddr(), name, 0)
	other := inParts(t, n, "somebody")
	other.want(openFrame(name), mcbp.StatusOK)
	first.want(alive, mcbp.StatusOK)
	second := openDCP(t, n.MemcachedAddr(), name, 0)
	second.want(alive, mcbp.StatusOK)
	other.want(alive, mcbp.StatusOK)
	if f, err := first.tryRead(); err == nil {
		t.Errorf("the first of two connections of a user and name goes on: %v", f.Op)
	}
}

// A connection with a name of the nodes has its privileges (attributes of tombstones, no moods) only for the nodes'
// own user.
func TestDCPNameOfNodesIsOfTheirUser(t *testing.T) {
	t.Parallel()
	n := nastyNode(t, server.OldControls)
	kv := login(t, n.MemcachedAddr(), mcbp.FeatureXattr)
	section := append(binary.BigEndian.AppendUint32(nil, 4), "u\x001\x00"...)
	all := append(mcbp.AppendXattrs(nil, section), "body"...)
	bury := request(mcbp.OpDeleteWithMeta, 0, mcbp.WithMeta{Rev: 5, CAS: 77}.AppendExtras(nil), []byte("a"), all)
	bury.Datatype = mcbp.DatatypeXattr
	kv.want(bury, mcbp.StatusOK)
	users{t, n}.set("somebody", "data_dcp_reader[world]")
	other := loginOf(t, n, "somebody", mcbp.StatusOK)
	other.want(request(mcbp.OpHello, 0, nil, []byte("test"), mcbp.AppendFeatures(nil,
		[]mcbp.Feature{mcbp.FeatureXattr})), mcbp.StatusOK)
	for _, x := range []struct {
		c       *rawClient
		control mcbp.Status
		value   []byte
	}{
		{login(t, n.MemcachedAddr(), mcbp.FeatureXattr), mcbp.StatusOK, all},
		{other, mcbp.StatusInvalid, []byte("body")},
	} {
		x.c.want(openFrame("replication:kv1->kv2:1"), mcbp.StatusOK)
		x.c.want(request(mcbp.OpDCPControl, 0, nil, []byte(mcbp.ControlExpiryOpcode), []byte("true")), x.control)
		x.c.want(fromZero(0), mcbp.StatusOK)
		x.c.lines("snapshot 0-1 2 <nil>")
		if f := x.c.read(); !bytes.Equal(f.Value, x.value) {
			t.Errorf("%q, want %q", f.Value, x.value)
		}
	}
}
