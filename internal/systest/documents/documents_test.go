package documents_test

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest/api"
)

func TestMain(m *testing.M) { systest.Main(m) }

// atTop makes the module's folder, which the documents speak of, that of the test.
// Done in TestMain it would go unseen by the go command, which then takes results
// for good that are from before a change.
func atTop(t *testing.T) {
	t.Helper()
	t.Chdir("../../..")
}

// documents returns all documents.
func documents(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

// read returns the lines of a file.
func read(t *testing.T, name string) []string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// A block is a fenced block of a document.
type block struct {
	line  int // the number of its first line in the document
	lines []string
}

func (b block) String() string { return strings.Join(b.lines, "\n") }

// blocks returns the blocks of one language in a document.
func blocks(t *testing.T, document, language string) (found []block) {
	t.Helper()
	fence := ""
	for i, line := range read(t, document) {
		switch {
		case fence == "" && strings.HasPrefix(line, "```"):
			fence = line
			if fence == "```"+language {
				found = append(found, block{line: i + 2})
			}
		case line == "```":
			fence = ""
		case fence == "```"+language:
			b := &found[len(found)-1]
			b.lines = append(b.lines, line)
		}
	}
	if fence != "" {
		t.Errorf("%s: a block isn't closed", document)
	}
	return found
}

// unindented returns lines as one text, without their indentation.
func unindented(lines []string) string {
	var text strings.Builder
	for _, line := range lines {
		text.WriteString(strings.TrimLeft(line, "\t "))
		text.WriteByte('\n')
	}
	return text.String()
}

// TestSnippets checks that the Go code in the documents is code that is
// compiled: whole lines in a row, but for their indentation.
func TestSnippets(t *testing.T) {
	atTop(t)
	var sources []string
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && entry.Name()[0] == '.':
			return fs.SkipDir
		case strings.HasSuffix(path, "_test.go"), strings.HasPrefix(path, "examples"+string(filepath.Separator)) && strings.HasSuffix(path, ".go"):
			sources = append(sources, "\n"+unindented(read(t, path)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range documents(t) {
		for _, b := range blocks(t, document, "go") {
			text := "\n" + unindented(b.lines)
			if !slices.ContainsFunc(sources, func(source string) bool { return strings.Contains(source, text) }) {
				t.Errorf("%s:%d: this code is in no Go file:\n%v", document, b.line, b)
			}
		}
	}
}

func TestReadmeProgram(t *testing.T) {
	atTop(t)
	const program = "examples/readme/main.go"
	found := blocks(t, "README.md", "go")
	if len(found) == 0 {
		t.Fatal("README.md has no Go code")
	}
	b := found[0]
	if !slices.Equal(b.lines, read(t, program)) {
		t.Errorf("README.md:%d: this is not %s", b.line, program)
	}
	if len(b.lines) > 25 {
		t.Errorf("README.md: the program has %d lines, want 25 at most", len(b.lines))
	}

	command := exec.CommandContext(t.Context(), "go", "run", "./examples/readme")
	command.Env = append(os.Environ(), "KMS_KEY=")
	out, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(out), " true <nil>\n") {
		t.Errorf("%v: %v\n%s", command, err, out)
	}
}

// TestReadme checks that README is short, and says what a new user needs in the order of use.
func TestReadme(t *testing.T) {
	atTop(t)
	lines := read(t, "README.md")
	if len(lines) > 200 {
		t.Errorf("README.md has %d lines, want 200 at most", len(lines))
	}
	if words := len(strings.Fields(strings.Join(lines, " "))); words >= 1100 {
		t.Errorf("README.md has %d words, want less than 1,100", words)
	}
	next := 0
	for _, want := range []string{
		"# gcpjwt", "**For you**", "**Not for you**", "](docs/who-calls-whom.svg)",
		"go get github.com/someone1/gcp-jwt-go/v3", "gcloud kms keys create", "func main() {", "middleware.New(",
		"NewTokenSource(", "gcpjwttest.NewSigner(", "jwks.NewDiscoveryHandler(", "## Choose a signer",
		"go run ./examples/quickstart", "go test ./...", "](docs/GUIDE.md)",
	} {
		i := slices.IndexFunc(lines[next:], func(line string) bool { return strings.Contains(line, want) })
		if i < 0 {
			t.Fatalf("README.md doesn't have %q, or not in its place", want)
		}
		next += i
	}
	for _, command := range []string{"go run ./examples/quickstart", "go test ./...", "go get github.com/someone1/gcp-jwt-go/v3"} {
		if !slices.Contains(lines, command) {
			t.Errorf("README.md doesn't have the command %s on a line of its own", command)
		}
	}
}

// TestWidth checks that lines of prose end at 100 columns. Tables and addresses can't be
// broken.
func TestWidth(t *testing.T) {
	atTop(t)
	for _, document := range documents(t) {
		fenced := false
		for i, line := range read(t, document) {
			if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
				fenced = !fenced
			}
			if width := len([]rune(line)); width > 100 && !fenced && !strings.HasPrefix(line, "|") && !strings.Contains(line, "](http") {
				t.Errorf("%s:%d: the line has %d columns, want 100 at most", document, i+1, width)
			}
		}
	}
}

// maxCell is how many words a table's cell has. A sentence needs more, or belongs elsewhere.
const maxCell = 16

// TestTables checks that tables are tables, and that their cells hold words, not sentences.
func TestTables(t *testing.T) {
	atTop(t)
	sentences := regexp.MustCompile(`[a-z)]\. [A-Z]`)
	for _, document := range documents(t) {
		fenced, columns := false, 0
		for i, line := range read(t, document) {
			if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
				fenced = !fenced
			}
			switch {
			case fenced:
				continue
			case !strings.HasPrefix(line, "|"):
				columns = 0
				if strings.Contains(line, "|---") {
					t.Errorf("%s:%d: a table is broken", document, i+1)
				}
				continue
			}
			cells := cellsOf(codeSpan.ReplaceAllString(line, "`code`"))
			if columns == 0 {
				columns = len(cells)
			}
			if len(cells) != columns {
				t.Errorf("%s:%d: the row has %d cells, want %d", document, i+1, len(cells), columns)
			}
			for _, cell := range cells {
				if words := len(strings.Fields(cell)); words > maxCell || sentences.MatchString(cell) {
					t.Errorf("%s:%d: a cell of %d words is a sentence: %s", document, i+1, words, cell)
				}
			}
		}
	}
}

// TestCommands runs the commands of the documents that work without Google Cloud.
func TestCommands(t *testing.T) {
	atTop(t)
	command := regexp.MustCompile(`^go run \./cmd/gcpjwt .*-embedded[^#]*`)
	found := 0
	for _, document := range documents(t) {
		for _, b := range blocks(t, document, "sh") {
			for _, line := range b.lines {
				match := command.FindString(line)
				if match == "" {
					if strings.HasPrefix(line, "go run ./cmd/gcpjwt") {
						t.Errorf("%s: %s can't be run here: add -embedded", document, line)
					}
					continue
				}
				found++
				out, err := exec.CommandContext(t.Context(), "bash", "-o", "pipefail", "-c", match).Output()
				if err != nil || len(out) == 0 {
					t.Errorf("%s: %s: %v, and %d bytes of output", document, match, err, len(out))
				}
			}
		}
	}
	if found == 0 {
		t.Error("the documents have no such command")
	}
}

// TestMigrationDiff checks that the diff in MIGRATION.md ends at what compiles,
// and begins at something that doesn't know v3.
func TestMigrationDiff(t *testing.T) {
	atTop(t)
	const migration, ported = "docs/MIGRATION.md", "examples/migrated/tokens.go"
	found := blocks(t, migration, "diff")
	if len(found) != 1 {
		t.Fatalf("%s has %d diffs, want 1", migration, len(found))
	}
	var before, after []string
	for i, line := range found[0].lines {
		sign, text := " ", ""
		if line != "" {
			sign, text = line[:1], line[1:]
		}
		switch sign {
		case " ":
			before, after = append(before, text), append(after, text)
		case "-":
			before = append(before, text)
		case "+":
			after = append(after, text)
		default:
			t.Errorf("%s:%d: a diff has no line %q", migration, found[0].line+i, line)
		}
	}
	if !slices.Equal(after, read(t, ported)) {
		t.Errorf("%s:%d: the diff doesn't lead to %s", migration, found[0].line, ported)
	}
	if text := strings.Join(before, "\n"); strings.Contains(text, "/v3") || !strings.Contains(text, "gcp-jwt-go/v2") {
		t.Errorf("%s:%d: the diff doesn't start from v2", migration, found[0].line)
	}
}

// TestFolder checks that somebody who opens the folder sees the product: what
// CONTRIBUTING.md says of the files at top level.
func TestFolder(t *testing.T) {
	atTop(t)
	const most = 20 // Go files that aren't tests
	glob := func(pattern string) []string {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	var sources, tests []string
	for _, name := range glob("*.go") {
		if strings.HasSuffix(name, "_test.go") {
			tests = append(tests, name)
		} else {
			sources = append(sources, name)
		}
	}
	if len(sources) > most {
		t.Errorf("%d Go files that aren't tests, want %d at most: %v", len(sources), most, sources)
	}
	for _, name := range tests {
		if name == "example_test.go" || name == "export_test.go" { // of the package as a whole
			continue
		}
		subject := strings.TrimSuffix(strings.TrimSuffix(name, "_test.go"), "_internal")
		if !slices.Contains(sources, subject+".go") {
			t.Errorf("%s: there is no %s.go that it tests; tests of the whole belong in internal/systest", name, subject)
		}
	}
	if got, want := glob("*.md"), []string{"CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"}; !slices.Equal(got, want) {
		t.Errorf("the documents at top level are %v, want %v; guides belong in docs", got, want)
	}
}

var (
	linkPattern = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pathPattern = regexp.MustCompile(`(?:^|[\s` + "`" + `("=])(\./[\w./-]+)`)
	codeSpan    = regexp.MustCompile("`[^`]*`")
)

// TestLinks checks that the files and headings exist that the documents name:
// links from the document's own folder, paths in commands from the top.
func TestLinks(t *testing.T) {
	atTop(t)
	for _, document := range documents(t) {
		fenced := false
		for i, line := range read(t, document) {
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
			}
			for _, match := range pathPattern.FindAllStringSubmatch(line, -1) {
				path := strings.TrimRight(match[1], "./")
				if _, err := os.Stat(path); path != "" && err != nil {
					t.Errorf("%s:%d: %v", document, i+1, err)
				}
			}
			if fenced {
				continue
			}
			for _, match := range linkPattern.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
				if strings.Contains(match[1], "://") {
					continue
				}
				path, anchor, _ := strings.Cut(match[1], "#")
				if path == "" {
					path = document
				} else {
					path = filepath.Join(filepath.Dir(document), path)
				}
				if _, err := os.Stat(path); err != nil {
					t.Errorf("%s:%d: %v", document, i+1, err)
				} else if anchor != "" && !slices.Contains(anchors(t, path), anchor) {
					t.Errorf("%s:%d: %s has no heading #%s", document, i+1, path, anchor)
				}
			}
		}
	}
}

// anchors returns the names that GitHub gives to a document's headings.
func anchors(t *testing.T, document string) (names []string) {
	fenced := false
	for _, line := range read(t, document) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if title := strings.TrimLeft(line, "#"); !fenced && title != line {
			name := strings.Map(func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case r == '-', r == '_', '0' <= r && r <= '9', 'a' <= r && r <= 'z':
					return r
				}
				return -1
			}, strings.ToLower(strings.TrimSpace(title)))
			names = append(names, name)
		}
	}
	return names
}

// tableRows returns the cells of the rows of all tables in a document whose
// first cell is a name in backquotes that matches.
func tableRows(t *testing.T, document string, name *regexp.Regexp) (rows [][]string) {
	for _, line := range read(t, document) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := cellsOf(line)
		if first := cells[0]; name.MatchString(strings.Trim(first, "`")) && first[0] == '`' {
			cells[0] = strings.Trim(first, "`")
			rows = append(rows, cells)
		}
	}
	return rows
}

// TestMethodTable checks the guide's table of methods against the package: its
// variables, the names that jwt knows, and what Cloud KMS's keys do.
const guide = "docs/GUIDE.md"

func TestMethodTable(t *testing.T) {
	atTop(t)
	lines, err := api.Exported(".")
	if err != nil {
		t.Fatal(err)
	}
	var variables []string
	for _, line := range lines {
		if name, ok := strings.CutPrefix(line, "pkg gcpjwt, var SigningMethod"); ok {
			name, _, _ = strings.Cut(name, " ")
			variables = append(variables, "SigningMethod"+name)
		}
	}
	rows := tableRows(t, guide, regexp.MustCompile(`^SigningMethod\w+$`))
	var names, registered []string
	algorithms := make(map[string][]string) // by KMS algorithm, the aliases of its methods
	for _, row := range rows {
		name, alias, alg := row[0], row[1], row[2]
		names = append(names, name)
		if want := strings.TrimPrefix(name, "SigningMethod"); alias != want {
			t.Errorf("docs/GUIDE.md: the alias of %s is %s, want %s", name, alias, want)
		}
		if jwt.GetSigningMethod(alias) == nil {
			t.Errorf("docs/GUIDE.md: jwt knows no method %s", alias)
		}
		if jwt.GetSigningMethod(alg) == nil {
			t.Errorf("docs/GUIDE.md: jwt knows no method %s, the algorithm of %s", alg, name)
		}
		registered = append(registered, alias, alg)
		for _, algorithm := range kmsAlgorithms(row[3]) {
			algorithms[algorithm] = append(algorithms[algorithm], alias)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, variables) {
		t.Errorf("docs/GUIDE.md: the table has the methods\n%v\nwant\n%v", names, variables)
	}
	for _, alg := range jwt.GetAlgorithms() {
		stock := slices.Contains([]string{"none", "RS384", "PS384", "ES512"}, alg)
		if !stock && !slices.Contains(registered, alg) {
			t.Errorf("docs/GUIDE.md: the table lacks %s, which is registered with jwt", alg)
		}
	}

	for value := range kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm_name {
		algorithm := kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm(value)
		t.Run(algorithm.String(), func(t *testing.T) {
			t.Parallel()
			server, client := systest.StartKMS(t)
			version, err := server.CreateKey("key", algorithm)
			if err != nil {
				t.Skip(err) // no key for signing
			}
			config := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
			ctx := gcpjwt.NewKMSContext(t.Context(), config)
			keyfunc, keyfuncErr := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
			for _, row := range rows {
				method := jwt.GetSigningMethod(row[1])
				if _, isKMS := method.(*gcpjwt.SigningMethodKMS); !isKMS {
					continue
				}
				listed := slices.Contains(algorithms[algorithm.String()], row[1])
				token := jwt.NewWithClaims(method, jwt.MapClaims{"sub": "somebody"})
				text, err := gcpjwt.SignedString(ctx, token)
				if listed != (err == nil) {
					t.Errorf("docs/GUIDE.md: %s with a key of this algorithm: error %v, listed: %v", row[1], err, listed)
				}
				if !listed || err != nil {
					continue
				}
				if got := systest.Header(t, text)["alg"]; got != row[2] {
					t.Errorf("docs/GUIDE.md: %s is %v, not %s", row[1], got, row[2])
				}
				if keyfuncErr != nil {
					t.Fatal(keyfuncErr)
				}
				if _, err := jwt.Parse(text, keyfunc); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// kmsAlgorithms returns the names in a table's cell, such as
// `RSA_SIGN_PKCS1_{2048,3072}_SHA256`.
func kmsAlgorithms(cell string) (names []string) {
	for _, span := range codeSpan.FindAllString(cell, -1) {
		span = strings.Trim(span, "`")
		before, rest, braces := strings.Cut(span, "{")
		if !braces {
			names = append(names, span)
			continue
		}
		choices, after, _ := strings.Cut(rest, "}")
		for choice := range strings.SplitSeq(choices, ",") {
			names = append(names, before+choice+after)
		}
	}
	return names
}

// TestOptionTable checks that the guide's table has the middleware's options.
func TestOptionTable(t *testing.T) {
	atTop(t)
	lines, err := api.Exported("middleware")
	if err != nil {
		t.Fatal(err)
	}
	var options, documented []string
	for _, line := range lines {
		if name, ok := strings.CutPrefix(line, "pkg middleware, func With"); ok {
			name, _, _ = strings.Cut(name, "(")
			options = append(options, "With"+name)
		}
	}
	for _, row := range tableRows(t, guide, regexp.MustCompile(`^With\w+$`)) {
		documented = append(documented, row[0])
	}
	slices.Sort(options)
	slices.Sort(documented)
	if len(options) == 0 || !slices.Equal(documented, options) {
		t.Errorf("%s: the table has the options\n%v\nwant\n%v", guide, documented, options)
	}
}

// TestEnvoy checks that the guide's configuration of Envoy fits the service beside it: the
// issuer, the audience, and how long a version waits before it signs.
func TestEnvoy(t *testing.T) {
	atTop(t)
	var text string
	for _, b := range blocks(t, guide, "yaml") {
		text += b.String() + "\n"
	}
	field := func(name string) string {
		match := regexp.MustCompile(`(?m)^ +` + name + `: (.+)$`).FindStringSubmatch(text)
		if match == nil {
			t.Fatalf("%s: Envoy's configuration has no %s", guide, name)
		}
		return match[1]
	}
	if got, want := field("uri"), field("issuer")+"/.well-known/jwks.json"; got != want {
		t.Errorf("%s: uri is %s, want %s", guide, got, want)
	}
	if got, want := field("sni"), strings.TrimPrefix(field("issuer"), "https://"); got != want {
		t.Errorf("%s: sni is %s, want %s", guide, got, want)
	}

	keeps, err := time.ParseDuration(field("cache_duration"))
	if err != nil {
		t.Fatal(err)
	}
	config := gcpjwttest.NewKMS(t).NewKey(kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256)
	handler, err := newIssuer(t.Context(), "https://issuer.example.com", config)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := guideConfig().ActivationDelay, keeps+systest.Refresh+time.Minute; got < want {
		t.Errorf("%s: the ActivationDelay is %v, want %v at least, as a fetch may fail", guide, got, want)
	}
	token, _, err := jwt.NewParser().ParseUnverified(
		string(systest.Body(handler, httptest.NewRequest(http.MethodPost, "/token", nil))), jwt.MapClaims{})
	if err != nil {
		t.Fatal(err)
	}
	audience, err := token.Claims.GetAudience()
	if got := "[" + strings.Join(audience, ", ") + "]"; err != nil || got != field("audiences") {
		t.Errorf("%s: the service's tokens are for %s, %v, and Envoy wants %s", guide, got, err, field("audiences"))
	}
}

// TestErrorTable checks that the guide says of every exported error when it comes and
// with which status the middleware answers.
func TestErrorTable(t *testing.T) {
	atTop(t)
	var variables []string
	dirs, err := api.Packages(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		lines, err := api.Exported(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			_, declaration, _ := strings.Cut(line, ", ")
			if name, ok := strings.CutPrefix(declaration, "var Err"); ok {
				name, _, _ = strings.Cut(name, " ")
				variables = append(variables, "Err"+name)
			}
		}
	}
	if len(variables) == 0 {
		t.Fatal("the packages export no errors")
	}
	documented := make(map[string]bool)
	for _, row := range tableRows(t, guide, regexp.MustCompile(`^Err\w+$`)) {
		documented[row[0]] = true
		if len(row) != 3 || slices.Contains(row, "") {
			t.Errorf("docs/GUIDE.md: %s needs two cells: when, HTTP status", row[0])
		}
		if !slices.Contains(variables, row[0]) {
			t.Errorf("docs/GUIDE.md: there is no %s", row[0])
		}
	}
	for _, name := range variables {
		if !documented[name] {
			t.Errorf("docs/GUIDE.md: the table of errors lacks %s", name)
		}
	}
}
