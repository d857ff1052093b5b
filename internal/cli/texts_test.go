package cli

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tidemark/errcode"
)

// TestTextsNameExistingCommands checks that every tidemark command in texts of the product, its pages and the files of
// deploy exists: error texts recommend commands to run.
func TestTextsNameExistingCommands(t *testing.T) {
	t.Parallel()
	root := newRoot(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	named := regexp.MustCompile(`\btidemark ([a-z]+) ([a-z][a-z-]*)`)
	prose := []string{"needs"} // tidemark cert needs …
	seen := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") ||
			!slices.Contains([]string{".go", ".md", ".yaml", ".yml", ".service", ".html", ".js"}, filepath.Ext(path)) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			group, _, err := root.Find(m[1:2])
			if err != nil || group == root || !strings.HasPrefix(group.Use, m[1]) || group.ValidArgsFunction != nil ||
				!group.HasSubCommands() || group.Annotations[roleKey] != "" {
				continue // prose, or a command that accepts other words
			}
			seen++
			if c, _, err := root.Find(m[1:]); (err != nil || c == group) && !slices.Contains(prose, m[2]) {
				t.Errorf("%s: there is no command %q", path, m[0])
			}
		}
		return nil
	})
	if err != nil || seen < 300 {
		t.Errorf("%d commands were found: %v", seen, err)
	}
}

// TestHelpRejectsUnknownWords checks that help for an unknown command or topic is an error, not the list of commands.
func TestHelpRejectsUnknownWords(t *testing.T) {
	for line, want := range map[string]string{
		"help":             "",
		"help index list":  "",
		"help exit-codes":  "",
		"completion":       "",
		"help idnex":       `tidemark has no command or topic "idnex", did you mean index?; see tidemark help topics`,
		"help index lst":   `tidemark index has no command or topic "lst", did you mean list?; see tidemark help topics`,
		"completion foosh": `tidemark completion accepts no argument, got "foosh"`,
	} {
		var stderr strings.Builder
		code := Main(strings.Fields(line), Streams{In: strings.NewReader(""), Out: io.Discard, Err: &stderr})
		if wrong := want != ""; wrong != (code == errcode.ExitUsage) || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d, %q; want %q", line, code, stderr.String(), want)
		}
	}
}
