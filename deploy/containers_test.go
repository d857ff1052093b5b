package deploy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"tidemark/internal/testing/testcluster"
)

// Ports of a node, as in docs/operations.md; the test of its commands checks that they are the program's.
const (
	firstPort, lastPort = 9520, 9528
	readyPort           = 9522
)

// takes makes the program read a role's command line and environment as a container passes them, and checks that
// nothing is unknown and that each setting takes effect. It returns the values.
func takes(t *testing.T, where string, args []string, env map[string]string) map[string]string {
	t.Helper()
	if len(args) == 0 {
		t.Fatalf("%s runs nothing", where)
	}
	cmd := exec.CommandContext(t.Context(), testcluster.Binary(t), append([]string{"config", "show", args[0], "--output",
		"json"}, args[1:]...)...)
	cmd.Env = os.Environ()
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", where, strings.Join(args, " "), err, out)
	}
	var shown struct {
		Settings []struct{ Key, Value, Origin, Env string }
	}
	if err := json.Unmarshal(out, &shown); err != nil {
		t.Fatal(err)
	}
	values, seen := map[string]string{}, map[string]bool{}
	for _, s := range shown.Settings {
		values[s.Key] = s.Value
		seen[s.Env] = s.Origin == "env "+s.Env
	}
	for name := range env {
		if strings.HasPrefix(name, "TIDEMARK_") && !seen[name] {
			t.Errorf("%s: %s is no setting of tidemark %s", where, name, args[0])
		}
	}
	return values
}

// decode decodes YAML as JSON; field names match case-insensitively.
func decode(t *testing.T, text []byte, into any) {
	t.Helper()
	var all map[string]any
	if err := yaml.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(all)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// certificates runs the command that creates the certificates according to the files, in a folder, and returns the
// folder.
func certificates(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, a := range args {
		if i > 0 && args[i-1] == "--out" {
			args[i] = filepath.Join(dir, filepath.Base(a))
		}
	}
	if out, err := exec.CommandContext(t.Context(), testcluster.Binary(t), args...).CombinedOutput(); err != nil {
		t.Fatalf("tidemark %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return dir
}

// TestDockerfile checks that the image contains what it needs of the source, and runs the program as an unprivileged
// user.
func TestDockerfile(t *testing.T) {
	text := string(read(t, "docker/Dockerfile"))
	for _, want := range []string{"ENTRYPOINT [\"/tidemark\"]\nCMD [\"node\"]", "\nUSER 65532:65532\n", "CGO_ENABLED=0 ",
		"\nFROM scratch\n", fmt.Sprintf("\nEXPOSE %d-%d\n", firstPort, lastPort)} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q", want)
		}
	}
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(read(t, "../go.mod"))
	if goVersion == nil || !strings.Contains(text, "FROM golang:"+string(goVersion[1])+" ") {
		t.Errorf("it is not built by the version of go.mod, %s", goVersion)
	}
	takes(t, "CMD", []string{"node"}, nil)
	// .dockerignore must not exclude files that the program is built from.
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		`{{if not .Standard}}{{range .GoFiles}}{{$.Dir}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$.Dir}}/{{.}}
{{end}}{{end}}`, "tidemark/cmd/tidemark").Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	ignored := regexp.MustCompile(`^(\.git|\.ci|docs)/|(^|/)testdata/|_test\.go$`)
	if want := ".git\n.ci\ndocs\n**/testdata\n**/*_test.go\n"; string(read(t, "../.dockerignore")) != want {
		t.Errorf(".dockerignore is another one than this test looks for: want %q", want)
	}
	files := 0
	for path := range strings.FieldsSeq(string(out)) {
		name, ours := strings.CutPrefix(path, root+"/")
		if files++; ours && ignored.MatchString(name) {
			t.Errorf(".dockerignore leaves out %s", name)
		}
	}
	if files < 300 {
		t.Errorf("only %d files were looked at", files)
	}
}

// TestCompose checks that each service's command and environment are accepted by the program, that the certificates
// are those that it creates, and that published ports exist.
func TestCompose(t *testing.T) {
	type service struct {
		Image       string
		Command     []string
		Environment map[string]string
		Ports       []string
		Volumes     []string
		Configs     []string
	}
	var file struct {
		Services map[string]service
		Volumes  map[string]any
		Configs  map[string]struct{ Content string }
	}
	decode(t, read(t, "docker/compose.yaml"), &file)
	dir := certificates(t, slices.Clone(file.Services["certs"].Command)...)
	nodes := 0
	for name, s := range file.Services {
		if s.Image != "tidemark" {
			t.Errorf("%s runs %q", name, s.Image)
		}
		for _, v := range s.Volumes {
			if volume, _, _ := strings.Cut(v, ":"); !has(file.Volumes, volume) {
				t.Errorf("%s: there is no volume %s", name, volume)
			}
		}
		for _, c := range s.Configs {
			if file.Configs[c].Content == "" {
				t.Errorf("%s: there is no config %s", name, c)
			}
		}
		for _, p := range s.Ports {
			if number, err := strconv.Atoi(p[strings.LastIndex(p, ":")+1:]); err != nil || number != firstPort {
				t.Errorf("%s publishes %s", name, p)
			}
		}
		switch name {
		case "certs":
		case "cli":
			for _, file := range []string{"ca.pem", "admin.pem", "admin-key.pem"} {
				read(t, filepath.Join(dir, s.Environment["TIDEMARK_CERTS_DIR"], file))
			}
		case "kv":
			takes(t, name, s.Command, s.Environment)
		default:
			nodes++
			values := takes(t, name, s.Command, s.Environment)
			if values["certs-dir"] != "/certs/"+name || !strings.Contains(","+values["nodes"]+",", ","+name+"="+name+",") {
				t.Errorf("%s: certificates in %s, nodes %s", name, values["certs-dir"], values["nodes"])
			}
			for _, file := range []string{"manager", "indexer", "projector"} {
				read(t, filepath.Join(dir, values["certs-dir"], file+".pem"))
			}
		}
	}
	if nodes != 3 {
		t.Errorf("%d nodes", nodes)
	}
	// What the user is told to type is a command, in the file and on the page.
	for _, path := range []string{"docker/compose.yaml", "README.md"} {
		found := regexp.MustCompile(`compose\.yaml run --rm (?:-T )?cli (.*)`).FindAllSubmatch(read(t, path), -1)
		if len(found) != 2 {
			t.Errorf("%s has %d commands", path, len(found))
		}
		for _, m := range found {
			words, _, _ := strings.Cut(string(m[1]), " <")
			help(t, strings.Fields(words))
		}
	}
}

func has[V any](m map[string]V, key string) bool {
	_, ok := m[key]
	return ok
}

// help requests the help of a command; all flags before that must be the command's own.
func help(t *testing.T, words []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), testcluster.Binary(t), append(words, "--help")...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Usage:\n  tidemark "+strings.Join(words[:2], " ")) {
		t.Errorf("tidemark %s: %v\n%s", strings.Join(words, " "), err, out)
	}
}

// object is the part of a Kubernetes object that the tests check.
type object struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Replicas             int
		ServiceName          string
		PodManagementPolicy  string
		Ports                []struct{ Port int }
		Selector             map[string]any
		MaxUnavailable       int
		VolumeClaimTemplates []struct{ Metadata struct{ Name string } }
		Template             struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				EnableServiceLinks *bool
				Containers         []container
				Volumes            []struct {
					Name      string
					Secret    struct{ SecretName string }
					ConfigMap struct{ Name string }
				}
			}
		}
	}
}

type probe struct {
	HTTPGet struct{ Scheme, Port, Path string }
}

type container struct {
	Args []string
	Env  []struct{ Name, Value string }
	// Ports are the ports on which the program listens.
	Ports []struct {
		Name          string
		ContainerPort int
	}
	ReadinessProbe probe
	LivenessProbe  probe
	VolumeMounts   []struct{ Name, MountPath string }
}

// port returns a port by its name.
func (c *container) port(name string) int {
	for _, p := range c.Ports {
		if p.Name == name {
			return p.ContainerPort
		}
	}
	return 0
}

// checkProbes checks that both probes request an existing port, where the program answers.
func (c *container) checkProbes(t *testing.T, name string, want int) {
	t.Helper()
	for path, p := range map[string]probe{"/readyz": c.ReadinessProbe, "/healthz": c.LivenessProbe} {
		if p.HTTPGet.Path != path || p.HTTPGet.Scheme != "HTTPS" || c.port(p.HTTPGet.Port) != want {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// TestKubernetes checks that command lines, environment, ports and probes are accepted by the program, and that what
// is mounted exists.
func TestKubernetes(t *testing.T) {
	var k struct {
		Resources          []string
		ConfigMapGenerator []struct {
			Name  string
			Files []string
		}
		SecretGenerator []struct {
			Name  string
			Files []string
		}
	}
	text := read(t, "kubernetes/kustomization.yaml")
	decode(t, text, &k)
	command := regexp.MustCompile(`made by: tidemark (cert cluster --out certs) '(.*)'`).FindSubmatch(text)
	if command == nil {
		t.Fatal("it does not say what makes the certificates")
	}
	dir := certificates(t, append(strings.Fields(string(command[1])), string(command[2]))...)
	made := map[string]bool{}
	for _, g := range append(k.SecretGenerator, k.ConfigMapGenerator...) {
		made[g.Name] = true
		for _, f := range g.Files {
			if strings.HasPrefix(f, "certs/") {
				read(t, filepath.Join(dir, f))
			}
		}
	}
	_, page, _ := strings.Cut(string(read(t, "README.md")), "\n## Kubernetes\n")
	if !strings.Contains(page, fmt.Sprintf("\ntidemark %s '%s'\n", command[1], command[2])) {
		t.Error("the page makes other certificates")
	}
	for _, m := range regexp.MustCompile(`(?m)^tidemark (user|cluster) (.*)$`).FindAllStringSubmatch(page, -1) {
		help(t, append([]string{m[1]}, strings.Fields(m[2])...))
	}
	seen := map[string]int{}
	for _, r := range k.Resources {
		for _, doc := range strings.Split(string(read(t, "kubernetes/"+r)), "\n---\n") {
			var o object
			decode(t, []byte(doc), &o)
			seen[o.Kind]++
			for i := range o.Spec.Template.Spec.Containers {
				checkPod(t, &o, &o.Spec.Template.Spec.Containers[i], made)
			}
			for _, p := range o.Spec.Ports {
				if p.Port < firstPort || p.Port > lastPort {
					t.Errorf("service %s has port %d", o.Metadata.Name, p.Port)
				}
			}
		}
	}
	if seen["StatefulSet"] != 1 || seen["Deployment"] != 1 || seen["Service"] != 2 || seen["PodDisruptionBudget"] != 1 {
		t.Errorf("there are %v", seen)
	}
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Log("kubectl is not here: kustomize was not run")
		return
	}
	if err := os.CopyFS(filepath.Join(dir, "k"), os.DirFS("kubernetes")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(filepath.Join(dir, "certs"), filepath.Join(dir, "k", "certs")),
		os.WriteFile(filepath.Join(dir, "k", "kv-password"), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), kubectl, "kustomize", filepath.Join(dir, "k")).CombinedOutput()
	if err != nil || !regexp.MustCompile(`secretName: tidemark-certs-[a-z0-9]+`).Match(out) {
		t.Errorf("kustomize: %v\n%s", err, out)
	}
}

// checkPod checks a container of a StatefulSet or Deployment.
func checkPod(t *testing.T, o *object, c *container, made map[string]bool) {
	t.Helper()
	name, pod := o.Metadata.Name, &o.Spec.Template.Spec
	if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
		t.Errorf("%s: variables of services (TIDEMARK_PORT) would be taken for settings", name)
	}
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = strings.ReplaceAll(e.Value, "$(TIDEMARK_ID)", "tidemark-0")
		if e.Value == "" {
			env[e.Name] = "tidemark-0" // a field of the pod
		}
	}
	mounts := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounts[m.Name] = m.MountPath
	}
	for _, v := range pod.Volumes {
		if source := v.Secret.SecretName + v.ConfigMap.Name; !made[source] || mounts[v.Name] == "" {
			t.Errorf("%s: nothing makes or mounts %s (%s)", name, v.Name, source)
		}
	}
	args := slices.Clone(c.Args)
	for i := range args { // the file of the ConfigMap
		args[i] = strings.ReplaceAll(args[i], mounts["config"]+"/tidemark.yaml", "kubernetes/tidemark.yaml")
	}
	values := takes(t, name, args, env)
	if o.Kind == "Deployment" {
		c.checkProbes(t, name, c.port("admin"))
		if values["admin"] != fmt.Sprintf("0.0.0.0:%d", c.port("admin")) {
			t.Errorf("%s listens on %s", name, values["admin"])
		}
		return
	}
	c.checkProbes(t, name, readyPort)
	for _, p := range c.Ports {
		if p.ContainerPort < firstPort || p.ContainerPort > lastPort {
			t.Errorf("%s has port %d", name, p.ContainerPort)
		}
	}
	var nodes []string
	for i := range o.Spec.Replicas {
		nodes = append(nodes, fmt.Sprintf("%s-%d=%s-%d.%s", name, i, name, i, o.Spec.ServiceName))
	}
	if values["nodes"] != strings.Join(nodes, ",") || values["id"] != "tidemark-0" ||
		values["advertise"] != "tidemark-0.tidemark" || values["certs-dir"] != mounts["certs"] ||
		values["data"] != mounts["data"] || o.Spec.PodManagementPolicy != "Parallel" {
		t.Errorf("%s: %v, mounts %v", name, values, mounts)
	}
}
