package api

import (
	"encoding"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/internal/version"
	"tidemark/manager/api/v1"
)

// object is a JSON object; its keys are written in sorted order, so that the document is reproducible.
type object = map[string]any

// TestDocumentOfOpenAPI checks openapi.json against the route table and the Go types; go test ./manager/api -update
// writes it.
func TestDocumentOfOpenAPI(t *testing.T) {
	text, err := json.MarshalIndent(newGenerator(t).document(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "openapi.json", string(text)+"\n")
}

// generator makes the OpenAPI document from the route table.
type generator struct {
	t        *testing.T
	schemas  object
	problems object                  // responses
	types    map[string]reflect.Type // by schema name
	comments map[string]string       // by "package.Type" and "package.Type.Field"
	parsed   map[string]bool
}

func newGenerator(t *testing.T) *generator {
	return &generator{t: t, schemas: object{}, problems: object{}, types: map[string]reflect.Type{},
		comments: map[string]string{}, parsed: map[string]bool{}}
}

func (g *generator) document() object {
	paths := object{}
	for _, rt := range over(&ground{}).routes() {
		if rt.role == RoleComponent {
			continue
		}
		if rt.doc.id == "" || rt.doc.summary == "" || rt.doc.tag == "" || len(rt.doc.answers) == 0 {
			g.t.Errorf("%s %s has no whole doc: see openapi.go", rt.method, rt.path)
			continue
		}
		for i, path := range openPaths(rt.path) {
			item, _ := paths[path].(object)
			if item == nil {
				item = object{}
				paths[path] = item
			}
			id := rt.doc.id
			if i > 0 {
				id += "ByName"
			}
			item[strings.ToLower(rt.method)] = g.operation(&rt, path, id)
		}
	}
	g.schema(reflect.TypeFor[rpc.Problem]())
	return object{
		"openapi": "3.1.1",
		"info": object{"title": "tidemark", "version": version.Number,
			"license": object{"name": "Apache 2.0", "identifier": "Apache-2.0"},
			"description": "Every manager serves all of this; any of them may be asked. HEAD works wherever GET does. " +
				"docs/api.md has the promises, docs/errors.md the codes."},
		"servers": []any{object{"url": "/"}},
		"tags":    tags(paths),
		"paths":   paths,
		"components": object{"securitySchemes": securitySchemes(), "schemas": g.schemas, "parameters": headerParameters(),
			"headers": answerHeaders(), "responses": g.problems},
	}
}

// securitySchemes returns the ways of authentication.
func securitySchemes() object {
	return object{
		"password": object{"type": "http", "scheme": "basic", "description": "A user and his password. A cluster " +
			"without users may take requests without credentials: see docs/security.md."},
		"token": object{"type": "http", "scheme": "bearer", "description": "A token of a user, with his role or a " +
			"lesser one."},
		"certificate": object{"type": "mutualTLS", "description": "A client certificate that names an administrator " +
			"(tidemark://admin/NAME) or a user (tidemark://user/NAME)."},
	}
}

// security returns the role that a call requires, for every way of authentication.
func security(role Role) []any {
	if role == RoleNone {
		return []any{}
	}
	var ways []any
	for _, scheme := range []string{"password", "token", "certificate"} {
		ways = append(ways, object{scheme: []string{string(role)}})
	}
	return ways
}

// openPaths returns a route's paths in OpenAPI form; an index is addressed by id, or by bucket and name.
func openPaths(path string) []string {
	if strings.Contains(path, "{ref:.+}") {
		return []string{strings.ReplaceAll(path, "{ref:.+}", "{id}"), strings.ReplaceAll(path, "{ref:.+}", "{bucket}/{name}")}
	}
	return []string{regexp.MustCompile(`\{(\w+):[^}]*\}`).ReplaceAllString(path, "{$1}")}
}

func tags(paths object) []any {
	var names []string
	for _, item := range paths {
		for _, op := range item.(object) {
			names = append(names, op.(object)["tags"].([]string)...)
		}
	}
	slices.Sort(names)
	var list []any
	for _, n := range slices.Compact(names) {
		list = append(list, object{"name": n})
	}
	return list
}

func (g *generator) operation(rt *route, path, id string) object {
	d := &rt.doc
	op := object{"operationId": id, "tags": []string{d.tag}, "summary": d.summary, "x-tidemark-role": rt.role,
		"parameters": g.parameters(rt, path),
		"responses":  g.responses(rt)}
	op["security"] = security(rt.role)
	if d.upload != "" {
		op["requestBody"] = object{"required": true, "content": object{d.upload: object{}}}
	}
	if d.body != nil {
		op["requestBody"] = object{"required": !d.optional,
			"content": object{rpc.MediaJSON: object{"schema": g.schema(reflect.TypeOf(d.body))}}}
		if rt.method == http.MethodPatch {
			op["requestBody"].(object)["content"].(object)[rpc.MediaMerge] = object{"schema": g.schema(reflect.TypeOf(d.body))}
		}
	}
	return op
}

func (g *generator) parameters(rt *route, path string) (list []any) {
	for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
		schema := object{"type": "string"}
		if m[1] == "id" && strings.Contains(path, "/indexes/") {
			schema["pattern"] = "^[0-9]+$"
		}
		list = append(list, object{"name": m[1], "in": "path", "required": true, "schema": schema})
	}
	for _, p := range rt.doc.params {
		schema := object{"type": "string"}
		if p.number {
			schema = object{"type": "integer", "minimum": 0}
		}
		if len(p.enum) > 0 {
			schema["enum"] = p.enum
		}
		o := object{"name": p.name, "in": "query", "description": p.means, "schema": schema}
		if p.required {
			o["required"] = true
		}
		list = append(list, o)
	}
	known := headerParameters()
	for _, h := range append(slices.Clone(rt.doc.headers), rt.everyRequest()...) {
		if known[h] == nil {
			g.t.Errorf("%s %s heeds header %s, which requestHeaders does not explain", rt.method, rt.path, h)
		}
		list = append(list, object{"$ref": "#/components/parameters/" + h})
	}
	return list
}

func headerParameters() object {
	all := object{}
	for name, h := range requestHeaders() {
		all[name] = object{"name": name, "in": "header", "description": h.means, "schema": h.schema()}
	}
	return all
}

func answerHeaders() object {
	all := object{}
	for name, h := range responseHeaders() {
		all[name] = object{"description": h.means, "schema": h.schema()}
	}
	return all
}

func (h header) schema() object {
	s := object{"type": "string"}
	if h.number {
		s = object{"type": "integer", "minimum": 0}
	}
	if h.pattern != "" {
		s["pattern"] = h.pattern
	}
	if h.most > 0 {
		s["maxLength"] = h.most
	}
	return s
}

func (g *generator) headers(rt *route, names ...string) object {
	all, known := object{}, responseHeaders()
	for _, h := range append(names, everyAnswer()...) {
		if _, ok := known[h]; !ok {
			g.t.Errorf("%s %s answers with header %s, which responseHeaders does not explain", rt.method, rt.path, h)
		}
		all[h] = object{"$ref": "#/components/headers/" + h}
	}
	return all
}

func (g *generator) responses(rt *route) object {
	all := object{}
	for _, a := range rt.doc.answers {
		content := object{}
		media := a.media
		if media == "" {
			media = rpc.MediaJSON
		}
		switch {
		case a.lines != nil:
			var kinds []any
			for _, l := range a.lines {
				kinds = append(kinds, g.schema(reflect.TypeOf(l)))
			}
			content[media] = object{"schema": object{"description": "each line", "oneOf": kinds}}
		case a.body != nil:
			content[media] = object{"schema": g.schema(reflect.TypeOf(a.body))}
		case a.media == mediaBinary:
			content[media] = object{}
		case a.media != "":
			content[media] = object{"schema": object{"type": "string"}}
		}
		if a.orText {
			content[mediaText] = object{"schema": object{"type": "string"}}
		}
		r := object{"description": a.means, "headers": g.headers(rt, a.headers...)}
		if len(content) > 0 {
			r["content"] = content
		}
		all[strconv.Itoa(a.status)] = r
	}
	byStatus := map[int][]string{}
	for _, code := range append(rt.commonCodes(), rt.doc.codes...) {
		info, ok := errcode.Lookup(code)
		if !ok {
			g.t.Errorf("%s %s may be refused with %s, which package errcode does not have", rt.method, rt.path, code)
			continue
		}
		byStatus[info.Status] = append(byStatus[info.Status], string(code))
	}
	for status, codes := range byStatus {
		slices.Sort(codes)
		codes = slices.Compact(codes)
		names := []string{}
		if status == http.StatusServiceUnavailable {
			names = append(names, "Retry-After")
		}
		name := "Problem" + strconv.Itoa(status) + "." + strings.Join(codes, ".")
		all[strconv.Itoa(status)] = object{"$ref": "#/components/responses/" + name}
		g.problems[name] = object{"description": http.StatusText(status) + ": " + strings.Join(codes, ", "),
			"headers": g.headers(rt, names...),
			"content": object{rpc.MediaProblem: object{"schema": object{
				"x-go-type": "Problem", // oapi-codegen otherwise generates a type for each use
				"allOf": []any{object{"$ref": "#/components/schemas/Problem"},
					object{"properties": object{"code": object{"enum": codes}, "status": object{"const": status}}}}}}}}
	}
	return all
}

// special returns the schemas of types whose JSON form reflection does not show.
func (g *generator) special(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[json.RawMessage]():
		return object{"description": "any JSON value"} // without a type: generators do not accept a list of types
	case reflect.TypeFor[v1.VBucketPosition]():
		return object{"type": "array", "prefixItems": []any{object{"type": "string", "pattern": "^[0-9]+$",
			"description": "vbuuid"},
			object{"type": "integer", "minimum": 0, "description": "seqno"}}, "minItems": 2, "maxItems": 2}
	case reflect.TypeFor[index.State]():
		var words []string
		for s := range index.State(255) {
			if w, err := s.MarshalText(); err == nil && !strings.ContainsAny(string(w), "0123456789(") && len(w) > 0 {
				words = append(words, string(w))
			}
		}
		return object{"type": "string", "enum": words}
	case reflect.TypeFor[index.ID](), reflect.TypeFor[index.CopyID]():
		return object{"type": "string", "pattern": "^[0-9]+$"}
	case reflect.TypeFor[errcode.Code]():
		return object{"type": "string"}
	}
	if t.Kind() != reflect.Struct && t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return object{"type": "string"}
	}
	if t.Implements(reflect.TypeFor[json.Marshaler]()) {
		g.t.Errorf("%s writes its own JSON: add it to special in openapi_gen_test.go", t)
	}
	return nil
}

func (g *generator) schema(t reflect.Type) object {
	if s := g.special(t); s != nil {
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.schema(t.Elem())
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "contentEncoding": "base64"}
		}
		return object{"type": "array", "items": g.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.schema(t.Elem())}
	case reflect.Interface:
		return object{}
	case reflect.Struct:
		if t.Name() == "" {
			return g.structure(t)
		}
		return g.named(t)
	}
	g.t.Errorf("no schema for %s", t)
	return object{}
}

// schemaNames renames types whose name is also that of another type.
var schemaNames = map[string]string{"partition.Rebalance": "SliceRebalance"}

// named adds a type to the components.
func (g *generator) named(t reflect.Type) object {
	name := strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
	if other, ok := schemaNames[t.String()]; ok {
		name = other
	}
	ref := object{"$ref": "#/components/schemas/" + name}
	if have, ok := g.types[name]; ok {
		if have != t {
			g.t.Errorf("%s and %s would both be schema %s: rename one", have, t, name)
		}
		return ref
	}
	g.types[name] = t
	s := g.structure(t)
	if c := g.comment(t, ""); c != "" {
		s["description"] = c
	}
	g.schemas[name] = s
	return ref
}

func (g *generator) structure(t reflect.Type) object {
	properties, required := object{}, []string{}
	g.fields(t, properties, &required)
	s := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		slices.Sort(required)
		s["required"] = required
	}
	return s
}

func (g *generator) fields(t reflect.Type, properties object, required *[]string) {
	for f := range fieldsOf(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			g.fields(f.Type, properties, required)
			continue
		}
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			g.t.Errorf("%s.%s has no json name", t, f.Name)
		}
		s := g.schema(f.Type)
		if strings.Contains(options, "string") {
			s = object{"type": "string", "pattern": "^[0-9]+$"}
		}
		if c := g.comment(t, f.Name); c != "" {
			described := object{"description": c}
			for k, v := range s {
				described[k] = v
			}
			s = described
		}
		properties[name] = s
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			*required = append(*required, name)
		}
	}
}

func fieldsOf(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

// comment returns the comment of a type, or of its field, from the source.
func (g *generator) comment(t reflect.Type, field string) string {
	folder, ok := strings.CutPrefix(t.PkgPath(), "tidemark/")
	if !ok {
		return ""
	}
	if !g.parsed[folder] {
		g.parsed[folder] = true
		g.parse(folder)
	}
	key := folder + "." + t.Name()
	if field != "" {
		key += "." + field
	}
	return g.comments[key]
}

func (g *generator) parse(folder string) {
	files, err := os.ReadDir("../../" + folder)
	if err != nil {
		g.t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), "../../"+folder+"/"+f.Name(), nil, parser.ParseComments)
		if err != nil {
			g.t.Fatal(err)
		}
		for _, d := range tree.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range decl.Specs {
				spec, ok := s.(*ast.TypeSpec)
				if !ok {
					continue
				}
				key := folder + "." + spec.Name.Name
				g.comments[key] = oneLine(decl.Doc, spec.Doc)
				if st, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range st.Fields.List {
						for _, n := range f.Names {
							g.comments[key+"."+n.Name] = oneLine(f.Doc, f.Comment)
						}
					}
				}
			}
		}
	}
}

func oneLine(groups ...*ast.CommentGroup) string {
	for _, c := range groups {
		if c != nil {
			return strings.Join(strings.Fields(c.Text()), " ")
		}
	}
	return ""
}
