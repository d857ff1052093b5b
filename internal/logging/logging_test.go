package logging

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/wire"
)

// TestLevels checks which lines are written as levels change, by loggers created before.
func TestLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		root := New(&out, "manager", hclog.Info, false)
		raft := root.Named("raft").With("id", "m1")
		snapshot := raft.Named("snapshot")
		levels := Of(raft)
		written := func() (got string) {
			out.Reset()
			for _, l := range []hclog.Logger{root, raft, snapshot} {
				for _, level := range []hclog.Level{hclog.Trace, hclog.Debug, hclog.Info, hclog.Error} {
					before := out.Len()
					l.Log(level, "x")
					if out.Len() > before {
						got += level.String()[:1]
					}
				}
				got += " "
			}
			return got
		}
		change := func(c wire.LogChange) {
			t.Helper()
			if err := levels.Change(&c); err != nil {
				t.Error(err)
			}
		}
		check := func(when, want string) {
			t.Helper()
			if got := written(); got != want+" " {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		check("at first", "ie ie ie")
		change(wire.LogChange{Component: "manager.raft", Level: "debug"})
		check("a component, and what is part of it", "ie die die")
		change(wire.LogChange{Component: "manager.raft.snapshot", Level: "off"})
		check("a part of it", "ie die ")
		change(wire.LogChange{Level: "error"})
		check("all others", "e die ")
		change(wire.LogChange{Level: "trace", ForMS: 60_000})
		check("for a minute", "tdie die ")
		time.Sleep(59 * time.Second)
		check("for a minute, still", "tdie die ")
		change(wire.LogChange{Level: "debug", ForMS: 1000})
		check("other words for a second", "die die ")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		check("a minute is over: as before it", "e die ")
		change(wire.LogChange{Component: "manager.raft", Level: "trace", ForMS: 1000})
		change(wire.LogChange{Component: "manager.raft", Level: "error"})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		check("changed again before its time", "e e ")
		change(wire.LogChange{Component: "manager.raft.snapshot"})
		check("as what it is part of", "e e e")
		change(wire.LogChange{})
		check("as it began", "ie ie ie")
		if fmt.Sprint(raft.IsDebug(), raft.IsInfo(), raft.GetLevel()) != "false true info" {
			t.Error(raft.IsDebug(), raft.IsInfo(), raft.GetLevel())
		}
		raft.SetLevel(hclog.Warn)
		state, err := json.Marshal(levels.State())
		want := `{"level":"info","components":[{"name":"manager","level":"info","own":false},` +
			`{"name":"manager.raft","level":"warn","own":true},` +
			`{"name":"manager.raft.snapshot","level":"warn","own":false}]}`
		if err != nil || string(state) != want {
			t.Errorf("%s, want %s", state, want)
		}
		for want, bad := range map[string]wire.LogChange{
			`level "loud": want trace`:        {Level: "loud"},
			`no component "x"; there are man`: {Component: "x", Level: "info"},
			"for -1 ms: want 0":               {Level: "info", ForMS: -1},
			"for 86400001 ms: want 0":         {Level: "info", ForMS: MaxFor.Milliseconds() + 1},
			"nothing to go back from":         {ForMS: 5},
		} {
			if err := levels.Change(&bad); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", bad, err, want)
			}
		}
	})
}

// TestNamesAreBounded checks that loggers with names beyond the bound log with the level of their parent.
func TestNamesAreBounded(t *testing.T) {
	root := New(&bytes.Buffer{}, "r", hclog.Info, false)
	for i := range 2 * maxComponents {
		root.Named(fmt.Sprint(i))
	}
	if n := len(Of(root).State().Components); n != maxComponents {
		t.Errorf("%d components", n)
	}
	root.SetLevel(hclog.Debug)
	if !root.Named("one more").IsDebug() {
		t.Error("it does not log as its role")
	}
	if Of(hclog.NewNullLogger()) != nil {
		t.Error("levels of another logger")
	}
}

// TestPlainKeys checks that a JSON line has keys that log stores accept as they are, whatever the texts are.
func TestPlainKeys(t *testing.T) {
	var out bytes.Buffer
	l := New(&out, "manager", hclog.Info, true).Named("api")
	l.Warn(`a "quoted" text, "@module": and "@timestamp":x`, "b", 1, "Z", `"@message":"no"`, "level", 3)
	l.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Info}).Print("from net/http\n")
	var lines []map[string]any
	for d := json.NewDecoder(&out); d.More(); {
		line := map[string]any{}
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if _, err := time.Parse("2006-01-02T15:04:05.000000Z07:00", line["time"].(string)); err != nil {
			t.Error(err)
		}
		delete(line, "time")
		lines = append(lines, line)
	}
	want := `[map[Z:"@message":"no" b:1 level:warn level_:3 logger:manager.api ` +
		`message:a "quoted" text, "@module": and "@timestamp":x]` +
		` map[level:info logger:manager.api message:from net/http]]`
	if got := fmt.Sprint(lines); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
