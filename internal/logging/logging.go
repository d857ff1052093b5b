// Package logging creates a role's logger, whose levels can be changed at run time: for all of its components or for
// one, permanently or for some time.
//
// Callers see hclog's Logger. A component is a named logger (Named), such as "manager.raft". Its level is that of the
// longest prefix of its name that has a level of its own, otherwise the role's.
package logging

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

const (
	// MaxFor is the maximum time for which a temporary level lasts.
	MaxFor = 24 * time.Hour
	// maxComponents bounds the tracked components; a further one logs with the level of its parent.
	maxComponents = 256
)

// Levels are the log levels of one process, by component. Its methods are safe for concurrent use.
type Levels struct {
	mu      sync.Mutex
	began   hclog.Level
	base    given
	own     map[string]given // by component: the levels that were set
	parts   map[string]*part
	changes uint64 // number of changes so far; a revert does nothing if its component was changed later
}

// given is a level that was set, and the end of it.
type given struct {
	level  hclog.Level
	until  time.Time // zero: never
	change uint64
	back   *given // the last permanent setting, restored at the end; nil: none
	timer  *time.Timer
}

// part is a component's level, which its loggers check before each line.
type part struct{ level atomic.Int32 }

// New returns a logger that writes to out, as text or as one JSON object per line with the keys time, level, logger
// and message.
func New(out io.Writer, name string, level hclog.Level, asJSON bool) hclog.Logger {
	if asJSON {
		out = plainKeys{out}
	}
	// The levels are checked here, so the logger below lets everything pass.
	below := hclog.New(&hclog.LoggerOptions{Name: name, Level: hclog.Trace, Output: out, JSONFormat: asJSON})
	l := &Levels{began: level, base: given{level: level}, own: map[string]given{}, parts: map[string]*part{}}
	return &logger{Logger: below, levels: l, part: l.part(name, nil), asJSON: asJSON}
}

// Of returns the levels of a logger created by New; nil for any other.
func Of(l hclog.Logger) *Levels {
	if own, ok := l.(*logger); ok {
		return own.levels
	}
	return nil
}

// Answer applies a change, unless it is nil, and returns the levels of a logger created by New; its errors are
// problems.
func Answer(ctx context.Context, of hclog.Logger, change *wire.LogChange) (*wire.LogLevels, error) {
	l := Of(of)
	if l == nil {
		return nil, rpc.Refuse(errcode.Unavailable, "the log levels of this process cannot be changed")
	}
	if change != nil {
		if err := l.Change(change); err != nil {
			return nil, rpc.Refuse(errcode.InvalidArgument, "%v", err)
		}
		// Logged whatever the level is now: a log that stops must contain the reason.
		of.(*logger).Logger.Info("log levels were changed", "component", change.Component, "to", change.Level, "for_ms",
			change.ForMS, "principal", rpc.Principal(ctx), "request_id", rpc.RequestID(ctx))
	}
	return l.State(), nil
}

// Get serves GET /v1/logging of a role.
func Get(of hclog.Logger) rpc.HandlerFunc {
	return rpc.Show(func(ctx context.Context) (*wire.LogLevels, error) { return Answer(ctx, of, nil) })
}

// Put serves PUT /v1/logging of a role.
func Put(of hclog.Logger) rpc.HandlerFunc {
	return rpc.Message(func(ctx context.Context, c *wire.LogChange) (*wire.LogLevels, error) {
		return Answer(ctx, of, c)
	})
}

// part returns the component of that name, or above if there are too many.
func (l *Levels) part(name string, above *part) *part {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.parts[name]
	switch {
	case p != nil:
		return p
	case len(l.parts) >= maxComponents:
		return above
	}
	p = &part{}
	p.level.Store(int32(l.of(name)))
	l.parts[name] = p
	return p
}

// of returns the effective level of a component.
func (l *Levels) of(name string) hclog.Level {
	for {
		if g, ok := l.own[name]; ok {
			return g.level
		}
		i := strings.LastIndexByte(name, '.')
		if i < 0 {
			return l.base.level
		}
		name = name[:i]
	}
}

// State returns the levels as they are now.
func (l *Levels) State() *wire.LogLevels {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &wire.LogLevels{Level: l.base.level.String(), UntilMS: untilMS(l.base), Components: []wire.LogComponent{}}
	for _, name := range slices.Sorted(maps.Keys(l.parts)) {
		g, own := l.own[name]
		s.Components = append(s.Components, wire.LogComponent{Name: name, Level: l.of(name).String(), Own: own,
			UntilMS: untilMS(g)})
	}
	return s
}

func untilMS(g given) int64 {
	if g.until.IsZero() {
		return 0
	}
	return g.until.UnixMilli()
}

// Change sets the level of a component or, without a component, of all that have no level of their own. Without a
// level, the component returns to its parent's level, or all return to the level at the start of the process. The
// error is the reason why the change is invalid.
func (l *Levels) Change(c *wire.LogChange) error {
	level := hclog.LevelFromString(c.Level)
	if c.Level != "" && level == hclog.NoLevel {
		return fmt.Errorf("level %q: want trace, debug, info, warn, error or off", c.Level)
	}
	span := time.Duration(c.ForMS) * time.Millisecond
	if c.ForMS < 0 || c.ForMS > MaxFor.Milliseconds() {
		return fmt.Errorf("for %d ms: want 0, which is for good, to %d (24 h)", c.ForMS, MaxFor.Milliseconds())
	}
	if c.Level == "" && span > 0 {
		return fmt.Errorf("for %s: without a level there is nothing to go back from", span)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Component != "" && l.parts[c.Component] == nil {
		return fmt.Errorf("there is no component %q; there are %s", c.Component,
			strings.Join(slices.Sorted(maps.Keys(l.parts)), ", "))
	}
	l.changes++
	if c.Level == "" {
		l.reset(c.Component)
		return nil
	}
	g := given{level: level, change: l.changes}
	if span > 0 {
		g.until, g.back = time.Now().Add(span), l.forGood(c.Component)
		component := c.Component
		change := l.changes
		g.timer = time.AfterFunc(span, func() { l.revert(component, change) })
	}
	l.set(c.Component, g)
	return nil
}

// forGood returns the last permanent setting of a component.
func (l *Levels) forGood(component string) *given {
	g, ok := l.own[component]
	if component == "" {
		g, ok = l.base, true
	}
	switch {
	case !ok:
		return nil
	case g.until.IsZero():
		return &g
	}
	return g.back
}

// revert undoes a change, unless there was a later one.
func (l *Levels) revert(component string, change uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.own[component]
	if component == "" {
		g = l.base
	}
	switch {
	case g.change != change:
	case g.back != nil:
		l.set(component, *g.back)
	default:
		l.reset(component)
	}
}

func (l *Levels) set(component string, g given) {
	l.cease(component)
	if component == "" {
		l.base = g
	} else {
		l.own[component] = g
	}
	l.apply()
}

// cease stops the timer of a setting that is replaced.
func (l *Levels) cease(component string) {
	g := l.own[component]
	if component == "" {
		g = l.base
	}
	if g.timer != nil {
		g.timer.Stop()
	}
}

func (l *Levels) reset(component string) {
	l.cease(component)
	if component == "" {
		for name := range l.own {
			l.cease(name)
		}
		l.base, l.own = given{level: l.began}, map[string]given{}
	} else {
		delete(l.own, component)
	}
	l.apply()
}

func (l *Levels) apply() {
	for name, p := range l.parts {
		p.level.Store(int32(l.of(name)))
	}
}

// logger is hclog's logger with levels that may change.
type logger struct {
	hclog.Logger
	levels *Levels
	part   *part
	asJSON bool
}

// fields returns the fields of a line. In JSON, those named like one of the line's own keys are renamed.
func (l *logger) fields(args []any) []any {
	if !l.asJSON {
		return args
	}
	copied := false
	for i := 0; i+1 < len(args); i += 2 {
		switch key, _ := args[i].(string); key {
		case "level", "message", "logger", "time":
			if !copied {
				args, copied = slices.Clone(args), true
			}
			args[i] = key + "_"
		}
	}
	return args
}

func (l *logger) passes(level hclog.Level) bool {
	least := l.GetLevel()
	return least != hclog.Off && level >= least
}

// GetLevel returns the component's current level.
func (l *logger) GetLevel() hclog.Level { return hclog.Level(l.part.level.Load()) }

// SetLevel sets the component's level permanently.
func (l *logger) SetLevel(level hclog.Level) {
	_ = l.levels.Change(&wire.LogChange{Component: l.Name(), Level: level.String()}) // hclog's method has no error
}

func (l *logger) IsTrace() bool { return l.passes(hclog.Trace) }
func (l *logger) IsDebug() bool { return l.passes(hclog.Debug) }
func (l *logger) IsInfo() bool  { return l.passes(hclog.Info) }
func (l *logger) IsWarn() bool  { return l.passes(hclog.Warn) }
func (l *logger) IsError() bool { return l.passes(hclog.Error) }

// Log writes a line if the component's level permits it.
func (l *logger) Log(level hclog.Level, msg string, args ...any) {
	if l.passes(level) {
		l.Logger.Log(level, msg, l.fields(args)...)
	}
}

func (l *logger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l *logger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *logger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *logger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *logger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

// With adds fields to each line; the component stays the same.
func (l *logger) With(args ...any) hclog.Logger {
	return &logger{Logger: l.Logger.With(l.fields(args)...), levels: l.levels, part: l.part, asJSON: l.asJSON}
}

// Named returns a logger for a part of this component.
func (l *logger) Named(name string) hclog.Logger { return l.as(l.Logger.Named(name)) }

// ResetNamed returns a logger for another component.
func (l *logger) ResetNamed(name string) hclog.Logger { return l.as(l.Logger.ResetNamed(name)) }

func (l *logger) as(below hclog.Logger) hclog.Logger {
	return &logger{Logger: below, levels: l.levels, part: l.levels.part(below.Name(), l.part), asJSON: l.asJSON}
}

// StandardLogger returns a log.Logger whose lines have the forced level, or info without one.
func (l *logger) StandardLogger(opts *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(opts), "", 0)
}

// StandardWriter returns a writer of such lines.
func (l *logger) StandardWriter(opts *hclog.StandardLoggerOptions) io.Writer {
	level := hclog.Info
	if opts != nil && opts.ForceLevel != hclog.NoLevel {
		level = opts.ForceLevel
	}
	return lines{l, level}
}

type lines struct {
	to    *logger
	level hclog.Level
}

func (w lines) Write(b []byte) (int, error) {
	w.to.Log(w.level, string(bytes.TrimRight(b, " \t\n")))
	return len(b), nil
}

// plainKeys removes the at sign from hclog's own keys of a JSON line. These keys come first, since fields are sorted;
// the text of a field cannot contain an unescaped quote.
type plainKeys struct{ to io.Writer }

func (w plainKeys) Write(b []byte) (int, error) {
	line := b
	for _, key := range [...][2]string{{`"@level":`, `"level":`}, {`"@message":`, `"message":`},
		{`"@module":`, `"logger":`}, {`"@timestamp":`, `"time":`}} {
		line = bytes.Replace(line, []byte(key[0]), []byte(key[1]), 1)
	}
	if _, err := w.to.Write(line); err != nil {
		return 0, err
	}
	return len(b), nil
}
