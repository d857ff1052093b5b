package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"

	"tidemark/errcode"
	"tidemark/manager/api/v1"
)

// TestStatusWithoutLeader checks that, without a leader, what only a leader knows is shown as unknown: a bucket is not
// shown as unused, nor an indexer as empty.
func TestStatusWithoutLeader(t *testing.T) {
	st := v1.Status{Verdict: "not ready", Projectors: []v1.ProjectorStatus{{ID: "p1", State: stateUnknown, Admin: "http://p1"}},
		Indexers: []v1.IndexerStatus{{ID: "i1", State: stateUnknown, Admin: "http://i1", Placed: 8, UUID: "u"}},
		Buckets:  []v1.BucketStatus{{Name: "world", VBuckets: 128, StabilityNumber: 2}}}
	out := table(func(w *tabwriter.Writer) {
		if err := printStatus(w, format("table"), st); err != nil {
			t.Error(err)
		}
	})
	for _, want := range []string{"leader none", "p1     unknown  http://p1  -\n", "http://i1  8 slices, uuid u\n",
		"bucket     world  unknown  -          stability timestamp 2\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
}

// TestStatusDuringTakeover checks that streams that a new leader has not adopted yet are not shown as missing.
func TestStatusDuringTakeover(t *testing.T) {
	st := v1.Status{Buckets: []v1.BucketStatus{{Name: "world", VBuckets: 128, Wanted: true, StreamsBegun: 7,
		StreamsMissing: 121}}}
	for step, want := range map[string]string{"": "unknown", "hello": "unknown", stateActive: "7 of 128"} {
		st.Coordinator = step
		status := table(func(w *tabwriter.Writer) {
			if err := printStatus(w, format("table"), st); err != nil {
				t.Error(err)
			}
		})
		top := table(func(w *tabwriter.Writer) { renderTop(w, &topView{Status: st}) })
		for name, out := range map[string]string{"status": status, "top": top} {
			if !strings.Contains(out, "  "+want) || step != stateActive && strings.Contains(out, "of 128") {
				t.Errorf("%s while the coordinator is %q: lacks %q:\n%s", name, step, want, out)
			}
		}
	}
}

// TestUnknownNode checks that the error for an unknown name states what was looked for, and that for the name of a
// process with --kv-all it lists the process's projectors.
func TestUnknownNode(t *testing.T) {
	st := v1.Status{Projectors: []v1.ProjectorStatus{{ID: "p1@a:11210"}, {ID: "p1@b:11210"}, {ID: "p11@a:11210"}}}
	for id, want := range map[string]string{
		"m9": `there is no manager, projector or indexer "m9"; tidemark cluster status lists them`,
		"p1": "; projector process p1 has one projector for each KV node: remove p1@a:11210, p1@b:11210"} {
		err := unknownNode(&st, id)
		if !strings.HasSuffix(err.Error(), want) || exitCode(err) != errcode.ExitNotFound {
			t.Errorf("%s: %v, exit code %d", id, err, exitCode(err))
		}
	}
}

// TestSecretFileIsNamed checks that the error of a bad password file contains its path.
func TestSecretFileIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	who := &credentialFlags{user: "ann", passwordFile: file}
	if _, err := who.options(t.Context(), Streams{}, nil); err == nil || !strings.Contains(err.Error(), file+": ") ||
		exitCode(err) != errcode.ExitUsage {
		t.Errorf("%v", err)
	}
}
