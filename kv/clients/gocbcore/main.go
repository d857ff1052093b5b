// Command gocbcore checks that Couchbase's gocbcore agents work against an embedded KV node: documents with the KV
// agent, a stream with the DCP agent; then a collection is created, written, streamed and dropped.
//
//	go run ./kv/clients/gocbcore HOST:PORT USER PASSWORD BUCKET
//
// It prints what worked and ends with "ok", or with the first failure.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const patience = 30 * time.Second

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: gocbcore HOST:PORT USER PASSWORD BUCKET")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "gocbcore:", err)
		os.Exit(1)
	}
	fmt.Println("ok")
}

// await runs an asynchronous operation.
func await(what string, start func(done chan<- error) (gocbcore.PendingOp, error)) error {
	done := make(chan error, 1)
	if _, err := start(done); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s: no answer", what)
	}
}

func run(addr, user, password, bucket string) error {
	seed := gocbcore.SeedConfig{MemdAddrs: []string{addr}}
	secure := gocbcore.SecurityConfig{Auth: gocbcore.PasswordAuthProvider{Username: user, Password: password},
		AuthMechanisms: []gocbcore.AuthMechanism{gocbcore.ScramSha512AuthMechanism}}
	kv, err := gocbcore.CreateAgent(&gocbcore.AgentConfig{BucketName: bucket, SeedConfig: seed, SecurityConfig: secure,
		IoConfig: gocbcore.IoConfig{UseCollections: true, UseMutationTokens: true, UseDurations: true}})
	if err != nil {
		return err
	}
	defer kv.Close()
	ready := gocbcore.WaitUntilReadyOptions{ServiceTypes: []gocbcore.ServiceType{gocbcore.MemdService}}
	if err := await("kv agent", func(done chan<- error) (gocbcore.PendingOp, error) {
		return kv.WaitUntilReady(time.Now().Add(patience), ready, func(_ *gocbcore.WaitUntilReadyResult,
			err error) {
			done <- err
		})
	}); err != nil {
		return err
	}
	token, err := documents(kv)
	if err != nil {
		return err
	}
	dcp, err := gocbcore.CreateDcpAgent(&gocbcore.DCPAgentConfig{BucketName: bucket, SeedConfig: seed,
		SecurityConfig: secure,
		IoConfig:       gocbcore.IoConfig{UseCollections: true}, DCPConfig: gocbcore.DCPConfig{BufferSize: 1 << 20,
			UseExpiryOpcode: true}},
		"gocbcore-example", memd.DcpOpenFlagProducer|memd.DcpOpenFlagIncludeXattrs|memd.DcpOpenFlagIncludeDeleteTimes)
	if err != nil {
		return err
	}
	defer dcp.Close()
	if err := await("dcp agent", func(done chan<- error) (gocbcore.PendingOp, error) {
		return dcp.WaitUntilReady(time.Now().Add(patience), ready,
			func(_ *gocbcore.WaitUntilReadyResult, err error) { done <- err })
	}); err != nil {
		return err
	}
	if err := stream(dcp, token); err != nil {
		return err
	}
	return collections(kv, dcp, bucket)
}

// documents stores, counts, appends, touches and deletes; the token is that of the last change.
func documents(kv *gocbcore.Agent) (last gocbcore.MutationToken, err error) {
	key, counter := []byte("airport"), []byte("counter")
	var value string
	steps := []struct {
		what  string
		start func(done chan<- error) (gocbcore.PendingOp, error)
	}{
		{"set", func(done chan<- error) (gocbcore.PendingOp, error) {
			return kv.Set(gocbcore.SetOptions{Key: key, Value: []byte(`{"a"`), Expiry: 3600},
				func(_ *gocbcore.StoreResult, err error) {
					done <- err
				})
		}},
		{"append", func(done chan<- error) (gocbcore.PendingOp, error) {
			return kv.Append(gocbcore.AdjoinOptions{Key: key, Value: []byte(`:1}`)}, func(_ *gocbcore.AdjoinResult, err error) {
				done <- err
			})
		}},
		{"touch", func(done chan<- error) (gocbcore.PendingOp, error) {
			return kv.Touch(gocbcore.TouchOptions{Key: key, Expiry: 7200},
				func(_ *gocbcore.TouchResult, err error) { done <- err })
		}},
		{"get", func(done chan<- error) (gocbcore.PendingOp, error) {
			return kv.GetAndTouch(gocbcore.GetAndTouchOptions{Key: key, Expiry: 0},
				func(r *gocbcore.GetAndTouchResult, err error) {
					if err == nil {
						value = string(r.Value)
					}
					done <- err
				})
		}},
		{"increment", func(done chan<- error) (gocbcore.PendingOp, error) {
			return kv.Increment(gocbcore.CounterOptions{Key: counter, Delta: 1, Initial: 1},
				func(r *gocbcore.CounterResult, err error) { done <- err })
		}},
		{"delete", func(done chan<- error) (gocbcore.PendingOp, error) {
			return kv.Delete(gocbcore.DeleteOptions{Key: counter}, func(r *gocbcore.DeleteResult, err error) {
				if err == nil {
					last = r.MutationToken
				}
				done <- err
			})
		}},
	}
	for _, s := range steps {
		if err := await(s.what, s.start); err != nil {
			return last, err
		}
	}
	if value != `{"a":1}` {
		return last, fmt.Errorf("get: %q", value)
	}
	err = await("get and lock", func(done chan<- error) (gocbcore.PendingOp, error) {
		return kv.GetAndLock(gocbcore.GetAndLockOptions{Key: key, LockTime: 1},
			func(_ *gocbcore.GetAndLockResult, err error) { done <- err })
	})
	if err == nil {
		return last, errors.New("get and lock: not refused")
	}
	fmt.Println("kv: set, append, touch, get and touch, increment, delete; get and lock is refused")
	return last, nil
}

// observer receives a stream's messages.
type observer struct {
	seen  chan string
	ended chan error
}

func (o *observer) SnapshotMarker(gocbcore.DcpSnapshotMarker) {}
func (o *observer) Mutation(m gocbcore.DcpMutation)           { o.seen <- "mutation " + string(m.Key) }
func (o *observer) Deletion(m gocbcore.DcpDeletion)           { o.seen <- "deletion " + string(m.Key) }
func (o *observer) Expiration(m gocbcore.DcpExpiration)       { o.seen <- "expiration " + string(m.Key) }
func (o *observer) End(_ gocbcore.DcpStreamEnd, err error)    { o.ended <- err }
func (o *observer) CreateCollection(m gocbcore.DcpCollectionCreation) {
	o.seen <- "begins " + string(m.Key)
}
func (o *observer) DeleteCollection(m gocbcore.DcpCollectionDeletion) {
	o.seen <- fmt.Sprintf("ends %x", m.CollectionID)
}
func (o *observer) FlushCollection(gocbcore.DcpCollectionFlush)         {}
func (o *observer) CreateScope(gocbcore.DcpScopeCreation)               {}
func (o *observer) DeleteScope(gocbcore.DcpScopeDeletion)               {}
func (o *observer) ModifyCollection(gocbcore.DcpCollectionModification) {}
func (o *observer) OSOSnapshot(gocbcore.DcpOSOSnapshot)                 {}
func (o *observer) SeqNoAdvanced(gocbcore.DcpSeqNoAdvanced)             {}

// maxItems bounds the items that the observer holds; the bucket of an example is small.
const maxItems = 10_000

// stream streams the vbucket of the token up to it: the last item must be the deletion.
func stream(dcp *gocbcore.DCPAgent, to gocbcore.MutationToken) error {
	o := &observer{seen: make(chan string, maxItems), ended: make(chan error, 1)}
	if err := await("dcp stream", func(done chan<- error) (gocbcore.PendingOp, error) {
		return dcp.OpenStream(to.VbID, memd.DcpStreamAddFlagActiveOnly, to.VbUUID, 0, to.SeqNo, 0, 0, o,
			gocbcore.OpenStreamOptions{},
			func(_ []gocbcore.FailoverEntry, err error) { done <- err })
	}); err != nil {
		return err
	}
	select {
	case err := <-o.ended:
		if err != nil {
			return fmt.Errorf("dcp stream ended: %w", err)
		}
	case <-time.After(patience):
		return errors.New("dcp stream: no end")
	}
	last := ""
	for range len(o.seen) {
		last = <-o.seen
	}
	if last != "deletion counter" {
		return fmt.Errorf("dcp stream: the last message is %q", last)
	}
	fmt.Println("dcp: a finite stream with its end")
	return nil
}

// The scope and the collection that the example creates.
const (
	exampleScope      = "gocbcore_example"
	exampleCollection = "people"
)

// manage sends a request to the node's REST interface, as documented by Couchbase for scopes and collections.
func manage(kv *gocbcore.Agent, method, path, form string) error {
	return await(method+" "+path, func(done chan<- error) (gocbcore.PendingOp, error) {
		return kv.DoHTTPRequest(&gocbcore.HTTPRequest{Service: gocbcore.MgmtService, Method: method, Path: path,
			Body: []byte(form), ContentType: "application/x-www-form-urlencoded", Deadline: time.Now().Add(patience)},
			func(a *gocbcore.HTTPResponse, err error) {
				if err == nil {
					body, _ := io.ReadAll(a.Body)
					_ = a.Body.Close()
					if a.StatusCode != 200 {
						err = fmt.Errorf("status %d: %s", a.StatusCode, body)
					}
				}
				done <- err
			})
	})
}

// collections creates a collection, writes and reads there, streams that collection alone, drops it, and creates it
// again.
func collections(kv *gocbcore.Agent, dcp *gocbcore.DCPAgent, bucket string) error {
	scopes := "/pools/default/buckets/" + bucket + "/scopes"
	members := scopes + "/" + exampleScope + "/collections"
	if err := manage(kv, "POST", scopes, "name="+exampleScope); err != nil {
		return err
	}
	if err := manage(kv, "POST", members, "name="+exampleCollection); err != nil {
		return err
	}
	var at gocbcore.MutationToken
	write := func() error {
		return await("set in a collection", func(done chan<- error) (gocbcore.PendingOp, error) {
			return kv.Set(gocbcore.SetOptions{Key: []byte("airport"), Value: []byte(`{"in":"a collection"}`),
				ScopeName: exampleScope, CollectionName: exampleCollection, Deadline: time.Now().Add(patience)},
				func(r *gocbcore.StoreResult, err error) {
					if err == nil {
						at = r.MutationToken
					}
					done <- err
				})
		})
	}
	read := func() (value string, err error) {
		err = await("get from a collection", func(done chan<- error) (gocbcore.PendingOp, error) {
			return kv.Get(gocbcore.GetOptions{Key: []byte("airport"), ScopeName: exampleScope,
				CollectionName: exampleCollection, Deadline: time.Now().Add(patience)},
				func(r *gocbcore.GetResult, err error) {
					if err == nil {
						value = string(r.Value)
					}
					done <- err
				})
		})
		return value, err
	}
	if err := write(); err != nil {
		return err
	}
	if value, err := read(); err != nil || value != `{"in":"a collection"}` {
		return fmt.Errorf("get from a collection: %q, %w", value, err)
	}
	id, err := collectionID(kv)
	if err != nil {
		return err
	}
	o := &observer{seen: make(chan string, maxItems), ended: make(chan error, 1)}
	filter := gocbcore.OpenStreamOptions{FilterOptions: &gocbcore.OpenStreamFilterOptions{CollectionIDs: []uint32{id}}}
	if err := await("stream of a collection", func(done chan<- error) (gocbcore.PendingOp, error) {
		return dcp.OpenStream(at.VbID, memd.DcpStreamAddFlagActiveOnly, at.VbUUID, 0, gocbcore.SeqNo(^uint64(0)), 0, 0, o,
			filter, func(_ []gocbcore.FailoverEntry, err error) { done <- err })
	}); err != nil {
		return err
	}
	if err := o.expect("begins "+exampleCollection, "mutation airport"); err != nil {
		return err
	}
	if err := manage(kv, "DELETE", members+"/"+exampleCollection, ""); err != nil {
		return err
	}
	if err := o.expect(fmt.Sprintf("ends %x", id)); err != nil {
		return err
	}
	select {
	case err := <-o.ended:
		if !errors.Is(err, gocbcore.ErrDCPStreamFilterEmpty) {
			return fmt.Errorf("stream of a dropped collection: %w", err)
		}
	case <-time.After(patience):
		return errors.New("stream of a dropped collection: no end")
	}
	if err := manage(kv, "POST", members, "name="+exampleCollection); err != nil {
		return err
	}
	if value, err := read(); !errors.Is(err, gocbcore.ErrDocumentNotFound) {
		return fmt.Errorf("get from a collection that was made again: %q, %w", value, err)
	}
	if err := write(); err != nil {
		return err
	}
	again, err := collectionID(kv)
	if err != nil || again == id {
		return fmt.Errorf("the collection that was made again has id %x as before, %w", again, err)
	}
	if err := manage(kv, "DELETE", scopes+"/"+exampleScope, ""); err != nil {
		return err
	}
	fmt.Println("collections: made, written, read, streamed alone, dropped, made again with another id; a scope dropped")
	return nil
}

func collectionID(kv *gocbcore.Agent) (id uint32, err error) {
	err = await("collection id", func(done chan<- error) (gocbcore.PendingOp, error) {
		return kv.GetCollectionID(exampleScope, exampleCollection, gocbcore.GetCollectionIDOptions{
			Deadline: time.Now().Add(patience)}, func(r *gocbcore.GetCollectionIDResult, err error) {
			if err == nil {
				id = r.CollectionID
			}
			done <- err
		})
	})
	return id, err
}

// expect waits for messages.
func (o *observer) expect(want ...string) error {
	for _, w := range want {
		select {
		case got := <-o.seen:
			if got != w {
				return fmt.Errorf("dcp stream: %q, want %q", got, w)
			}
		case <-time.After(patience):
			return fmt.Errorf("dcp stream: nothing, want %q", w)
		}
	}
	return nil
}
