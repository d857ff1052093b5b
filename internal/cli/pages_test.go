package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/expression"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

var (
	pageNumber = regexp.MustCompile(`[0-9]+`)
	pageTime   = regexp.MustCompile(`[0-9]+(\.[0-9]+)?(m|µ)?s\b`)
	pageFolder = regexp.MustCompile(`/tmp/tidemark-[0-9]+`)
	pageField  = regexp.MustCompile(`"[a-z_]+": ?`)
	pageCount  = regexp.MustCompile(`(?m)^[0-9]+$|"count": ?[0-9]+|\b[0-9]+ rows?\b`)
	pageToken  = regexp.MustCompile(`("session": ?"|--session-token )[A-Za-z0-9_-]{40,}`)
	pageServer = regexp.MustCompile(`(127\.0\.0\.1|localhost):952([0-9])`)
)

// pagePatience is how long an answer may lack what a page shows.
const pagePatience = time.Minute

// pages are those of which each code block is tried, in this order: a block that nothing here tries fails the test. The
// first one counts the sample data, others add to them.
func pages() []string {
	return []string{"../../docs/scans.md", "../../README.md", "../../docs/ddl.md", "../../docs/api.md",
		"../../docs/expressions.md"}
}

// page is what the code blocks of a page are tried with.
type page struct {
	t       *testing.T
	cluster *testcluster.Cluster
	bin     string
	servers []string
}

// run tries the code blocks of a page in their order. What stands behind the three marks says what a block is; one of
// commands has nothing there.
func (p *page) run(path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		p.t.Fatal(err)
	}
	parts := strings.Split("\n"+string(b), "\n```")
	if len(parts)%2 == 0 {
		p.t.Fatalf("%s: the last code block has no end", path)
	}
	for n := 1; n < len(parts); n += 2 {
		kind, block, _ := strings.Cut(parts[n], "\n")
		switch kind {
		case "":
			p.commands(path, block)
		case "grammar":
			p.grammar(block)
		case "json":
			p.lines(block)
		case "printed": // by up --sample
			p.printed(block)
		case "problem", "events": // what cannot be had at will: it is JSON
			p.parts(block)
		case "build":
			p.builds(block)
		case "drawing":
			if !strings.Contains(block, "┌") {
				p.t.Errorf("%s: this is no drawing:\n%s", path, block)
			}
		case "document": // the page of expressions is made as a whole by another test, which computes all of its values
			if !json.Valid([]byte(block)) || !strings.HasSuffix(path, "expressions.md") {
				p.t.Errorf("%s: this is no document:\n%s", path, block)
			}
		default:
			p.t.Errorf("%s: no test tries code blocks of the kind %q:\n%s", path, kind, block)
		}
	}
}

// same leaves out what differs from run to run.
func same(line string) string {
	line = pageToken.ReplaceAllString(strings.Join(strings.Fields(line), " "), "${1}N")
	return pageNumber.ReplaceAllString(line, "N")
}

// counts returns the numbers of rows that a text tells.
func counts(text string) map[string]bool {
	all := map[string]bool{}
	for _, n := range pageCount.FindAllString(text, -1) {
		all[strings.ReplaceAll(n, " ", "")] = true
	}
	return all
}

// compare wants each line that is shown among what was printed, but for the width of columns and for numbers that do
// not count rows; … is any lines.
func (p *page) compare(command, shown, printed string) {
	got := same(strings.ReplaceAll(printed, "\n", " \u2028 ")) + " "
	for line := range strings.SplitSeq(shown, "\n") {
		if line = same(line); line != "" && line != "…" && !strings.Contains(got, line+" ") {
			p.t.Errorf("%s\nprints no line like %q but:\n%s", command, line, printed)
		}
	}
	told := counts(printed)
	for n := range counts(shown) {
		if !told[n] {
			p.t.Errorf("%s\ncounts not %s but %s:\n%s", command, n, slices.Sorted(maps.Keys(told)), printed)
		}
	}
}

// commands runs those behind "$ ". One whose output begins with "tidemark: " must fail.
func (p *page) commands(path, block string) {
	parts := strings.Split("\n"+block, "\n$ ")
	if len(parts) < 2 || strings.TrimSpace(parts[0]) != "" {
		p.t.Errorf("%s: this code block does not begin with a command ($ …), so that nothing tries it:\n%s", path, block)
	}
	for _, part := range parts[1:] {
		command, shown, _ := strings.Cut(part, "\n")
		command = strings.ReplaceAll(pageFolder.ReplaceAllString(command, p.cluster.Dir), "./tidemark", p.bin)
		if strings.HasPrefix(command, "tidemark ") {
			command = p.bin + strings.TrimPrefix(command, "tidemark")
		}
		command = pageServer.ReplaceAllStringFunc(command, func(s string) string {
			return p.servers[int(s[len(s)-1]-'0')%len(p.servers)]
		})
		api, reads := strings.HasSuffix(path, "api.md"), !strings.Contains(command, " -X ")
		out, err := p.output(command)
		for limit := time.Now().Add(pagePatience); api && reads && len(lacks(shown, out)) > 0 && time.Now().Before(limit); {
			time.Sleep(scriptsPause) // a leader that is new does not know everything yet
			out, err = p.output(command)
		}
		if fails := strings.HasPrefix(shown, "tidemark: "); (err != nil) != fails {
			p.t.Errorf("%s\n%v\n%s", command, err, out)
		}
		if !api {
			p.compare(command, shown, out)
			continue
		}
		for _, name := range lacks(shown, out) {
			p.t.Errorf("%s\nhas no %s in its answer:\n%s", command, name, out)
		}
	}
}

// output runs a command.
func (p *page) output(command string) (string, error) {
	cmd := exec.CommandContext(p.t.Context(), "sh", "-c", command)
	cmd.Env = append(os.Environ(), "TIDEMARK_SERVER="+p.servers[0])
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// lacks lists the members of a shown answer that are not among those of the answer. What is shown is shortened, and in
// another layout.
func lacks(shown, printed string) (names []string) {
	for _, name := range pageField.FindAllString(shown, -1) {
		if !strings.Contains(strings.ReplaceAll(printed, `": `, `":`), strings.ReplaceAll(name, `": `, `":`)) {
			names = append(names, name)
		}
	}
	return names
}

// parts wants JSON in each part of an answer: behind "data:" of an event, or all that follows the command.
func (p *page) parts(block string) {
	_, text, _ := strings.Cut(block, "\n")
	parts := strings.Split(text, "\ndata: ")
	if len(parts) > 1 {
		parts = parts[1:]
	}
	for _, part := range parts {
		if event, _, found := strings.Cut(part, "\n\n"); found {
			part = event
		}
		if !json.Valid([]byte(strings.ReplaceAll(part, ",…", ""))) {
			p.t.Errorf("this is no JSON:\n%s", part)
		}
	}
}

// grammar parses every statement that a block of forms stands for: […] may be left out, | divides alternatives within
// it and at the end of a statement, and … is more of the same.
func (p *page) grammar(block string) {
	all := 0
	for form := range strings.SplitSeq(strings.ReplaceAll(strings.TrimSpace(block), "\n  ", " "), "\n") {
		for _, key := range []string{"a", "ALL a", "DISTINCT a"} {
			text := strings.NewReplacer(" [, …]", "", ", …", "", "VALUES (…)", "VALUES (1, 2, 3, 4, 5, 6, 7)", "predicate",
				"a > 1", `:["i1"]`, `:"i1"`, `:["m"]`, `:"m"`, "keyspace", "bucket", "key", key).Replace(form)
			for _, alternative := range strings.Split(text, " | ") {
				if first, _, _ := strings.Cut(text, "{"); strings.HasPrefix(alternative, "{") {
					alternative = first + alternative
				}
				for _, statement := range expanded(alternative) {
					all++
					if _, err := expression.Parse(statement); err != nil {
						p.t.Errorf("%s\nsays that this is a statement:\n%s\n%v", form, statement, err)
					}
				}
			}
		}
	}
	if all == 0 {
		p.t.Error("there are no forms")
	}
}

// expanded returns all texts that a form with [a|b] stands for.
func expanded(form string) []string {
	open := strings.Index(form, "[")
	if open < 0 {
		return []string{form}
	}
	end, depth := open, 0
	for ; end < len(form); end++ {
		if depth += strings.Count(form[end:end+1], "[") - strings.Count(form[end:end+1], "]"); depth == 0 {
			break
		}
	}
	var all []string
	for _, choice := range append(strings.Split(form[open+1:end], "|"), "") {
		all = append(all, expanded(form[:open]+choice+form[min(end+1, len(form)):])...)
	}
	return all
}

// lines decodes the lines of a verification's answer.
func (p *page) lines(block string) {
	d := json.NewDecoder(bytes.NewReader([]byte(strings.ReplaceAll(block, "[…]", "[]"))))
	d.DisallowUnknownFields()
	for n := 0; ; n++ {
		var line v1.VerifyLine
		if err := d.Decode(&line); errors.Is(err, io.EOF) && n > 0 {
			return
		} else if err != nil {
			p.t.Errorf("line %d of %s: %v", n+1, block, err)
			return
		}
		if line.Difference == nil && line.Progress == nil && line.End == nil {
			p.t.Errorf("line %d of %s says nothing", n+1, block)
		}
	}
}

// printed compares with what the cluster's own `up --sample` has printed.
func (p *page) printed(block string) {
	tick := time.NewTicker(scriptsPause)
	defer tick.Stop()
	deadline := time.After(sampleWait)
	for !strings.Contains(p.cluster.Output(), "ready; Ctrl-C") {
		select {
		case <-deadline:
			p.t.Fatalf("up is not ready:\n%s", p.cluster.Output())
		case <-tick.C:
		}
	}
	took := func(s string) string { return pageTime.ReplaceAllString(s, "0") }
	p.compare("tidemark up --sample", took(pageFolder.ReplaceAllString(block, p.cluster.Dir)), took(p.cluster.Output()))
}

// builds tries the commands of somebody who has the source: what is run has these flags, what is tested is there. (All
// tests run in CI, and up --sample is what these run in.)
func (p *page) builds(block string) {
	for line := range strings.Lines(block) {
		command, _, _ := strings.Cut(line, "#")
		fields := strings.Fields(command)
		var cmd *exec.Cmd
		switch {
		case len(fields) > 3 && strings.Join(fields[:3], " ") == "go run ./cmd/tidemark":
			cmd = exec.CommandContext(p.t.Context(), p.bin, append(fields[3:], "--help")...)
		case len(fields) > 2 && strings.Join(fields[:2], " ") == "go test":
			last := len(fields) - 1
			if out, err := exec.CommandContext(p.t.Context(), "go",
				append(fields[1:last:last], "-list", "^$", "tidemark/index")...).CombinedOutput(); err != nil {
				p.t.Errorf("flags of %q: %v\n%s", line, err, out)
			}
			cmd = exec.CommandContext(p.t.Context(), "go", "list", fields[last])
			cmd.Dir = "../.."
		default:
			p.t.Errorf("nothing tries %q", line)
			continue
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			p.t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
}

// TestCounts: which numbers of an example have to be right.
func TestCounts(t *testing.T) {
	text := "KEY  ID\n7, \"x\"  airport::12\n2 rows at timestamp 945\n61\n{\"count\": " +
		"9359,\"timestamp\":{\"id\":\"1.0.2\"}}\n1 row of N rows\n"
	got := strings.Join(slices.Sorted(maps.Keys(counts(text))), " ")
	if want := `"count":9359 1row 2rows 61`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestExpanded: what a form stands for.
func TestExpanded(t *testing.T) {
	got := strings.Join(expanded("a [b|c [d]] e"), "/")
	if want := "a b e/a c d e/a c  e/a  e"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
