// Package api reads what the library exports.
package api

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Packages returns the folders of the public packages below top, the module's
// folder: all but internal ones, programs and other modules.
func Packages(top string) (dirs []string, err error) {
	err = filepath.WalkDir(top, func(dir string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || !entry.IsDir():
			return err
		case dir == top:
		case strings.HasPrefix(entry.Name(), "."), slices.Contains([]string{"internal", "examples", "testdata"}, entry.Name()):
			return fs.SkipDir
		}
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil && dir != top {
			return fs.SkipDir
		}
		sources, err := readSources(dir)
		if err == nil && sources.name != "" && sources.name != "main" {
			dirs = append(dirs, dir)
		}
		return err
	})
	return dirs, err
}

// Exported returns a sorted line for each exported declaration of the package in
// dir.
func Exported(dir string) ([]string, error) {
	p, err := readSources(dir)
	if err != nil {
		return nil, err
	}
	return p.exported()
}

// sources holds the declarations of a package's source files.
type sources struct {
	name    string
	fset    *token.FileSet
	files   []*ast.File
	types   map[string]*ast.TypeSpec
	funcs   map[string]*ast.FuncDecl
	methods map[string][]*ast.FuncDecl // by the receiver's type
}

// readSources parses the package in dir without its tests. Its name is empty if
// there is none.
func readSources(dir string) (*sources, error) {
	p := &sources{
		fset:    token.NewFileSet(),
		types:   make(map[string]*ast.TypeSpec),
		funcs:   make(map[string]*ast.FuncDecl),
		methods: make(map[string][]*ast.FuncDecl),
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(p.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, file)
		p.name = file.Name.Name
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					p.funcs[d.Name.Name] = d
				} else {
					receiver := strings.TrimPrefix(p.text(d.Recv.List[0].Type), "*")
					p.methods[receiver] = append(p.methods[receiver], d)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok {
						p.types[s.Name.Name] = s
					}
				}
			}
		}
	}
	return p, nil
}

// exported returns a sorted line for each exported declaration.
func (p *sources) exported() (lines []string, err error) {
	add := func(format string, args ...any) {
		lines = append(lines, "pkg "+p.name+", "+fmt.Sprintf(format, args...))
	}
	for _, file := range p.files {
		for _, decl := range file.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			switch d.Tok {
			case token.CONST:
				p.consts(d, add)
			case token.VAR:
				if err := p.vars(d, add); err != nil {
					return nil, err
				}
			}
		}
	}
	for name, f := range p.funcs {
		if f.Name.IsExported() {
			add("func %s%s", name, p.signature(f))
		}
	}
	for name, spec := range p.types {
		if !spec.Name.IsExported() {
			continue
		}
		structure, ok := spec.Type.(*ast.StructType)
		if !ok {
			assign := ""
			if spec.Assign.IsValid() {
				assign = "= "
			}
			add("type %s %s%s", name, assign, p.text(spec.Type))
		} else {
			add("type %s struct", name)
			for _, field := range structure.Fields.List {
				for _, ident := range field.Names {
					if ident.IsExported() {
						add("type %s struct, %s %s", name, ident.Name, p.text(field.Type))
					}
				}
				if base := embedded(field); base != "" && ast.IsExported(base[strings.LastIndex(base, ".")+1:]) {
					add("type %s struct, embedded %s", name, p.text(field.Type))
				}
			}
		}
		p.methodsOf(name, name, make(map[string]bool), add)
	}
	slices.Sort(lines)
	return lines, nil
}

// methodsOf adds the exported methods of a type and those that the unexported
// types embedded in it promote.
func (p *sources) methodsOf(exported, name string, seen map[string]bool, add func(format string, args ...any)) {
	for _, f := range p.methods[name] {
		if f.Name.IsExported() && !seen[f.Name.Name] {
			seen[f.Name.Name] = true
			pointer := strings.Repeat("*", strings.Count(p.text(f.Recv.List[0].Type), "*"))
			add("method (%s%s) %s%s", pointer, exported, f.Name.Name, p.signature(f))
		}
	}
	if spec := p.types[name]; spec != nil {
		if structure, ok := spec.Type.(*ast.StructType); ok {
			for _, field := range structure.Fields.List {
				if base := embedded(field); base != "" && !ast.IsExported(base) {
					p.methodsOf(exported, base, seen, add)
				}
			}
		}
	}
}

// embedded returns the type that a field embeds, without a star, or "".
func embedded(field *ast.Field) string {
	if len(field.Names) > 0 {
		return ""
	}
	expr := field.Type
	if star, ok := expr.(*ast.StarExpr); ok {
		expr = star.X
	}
	switch e := expr.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return fmt.Sprint(e.X, ".", e.Sel.Name)
	}
	return ""
}

// consts adds the constants of a declaration, with the value expression that
// a line without one repeats.
func (p *sources) consts(d *ast.GenDecl, add func(format string, args ...any)) {
	var last *ast.ValueSpec
	for n, spec := range d.Specs {
		s := spec.(*ast.ValueSpec)
		if len(s.Values) > 0 {
			last = s
		}
		for i, name := range s.Names {
			if name.IsExported() {
				typ := ""
				if last.Type != nil {
					typ = " " + p.text(last.Type)
				}
				value := strings.ReplaceAll(p.text(last.Values[i]), "iota", fmt.Sprint(n))
				add("const %s%s = %s", name.Name, typ, value)
			}
		}
	}
}

// vars adds the variables of a declaration with their types.
func (p *sources) vars(d *ast.GenDecl, add func(format string, args ...any)) error {
	for _, spec := range d.Specs {
		s := spec.(*ast.ValueSpec)
		for i, name := range s.Names {
			if !name.IsExported() {
				continue
			}
			typ := ""
			if s.Type != nil {
				typ = p.text(s.Type)
			} else if len(s.Values) == len(s.Names) {
				typ = p.typeOf(s.Values[i])
			}
			if typ == "" {
				return fmt.Errorf("%v: the type of %s is more than this test can tell: declare it", p.fset.Position(name.Pos()), name.Name)
			}
			add("var %s %s", name.Name, typ)
		}
	}
	return nil
}

// typeOf returns the type of a variable's initial value, if it is a simple one.
func (p *sources) typeOf(value ast.Expr) string {
	switch v := value.(type) {
	case *ast.UnaryExpr:
		if literal, ok := v.X.(*ast.CompositeLit); ok && v.Op == token.AND {
			return "*" + p.text(literal.Type)
		}
	case *ast.CompositeLit:
		return p.text(v.Type)
	case *ast.SelectorExpr:
		if strings.HasPrefix(v.Sel.Name, "Err") {
			return "error" // of another package, exported here too
		}
	case *ast.CallExpr:
		switch name := p.text(v.Fun); name {
		case "errors.New", "fmt.Errorf", "errs.New", "errs.Errorf":
			return "error"
		default:
			if f := p.funcs[name]; f != nil && f.Type.Results.NumFields() == 1 {
				return p.text(f.Type.Results.List[0].Type)
			}
		}
	}
	return ""
}

func (p *sources) signature(f *ast.FuncDecl) string {
	return strings.TrimPrefix(p.text(f.Type), "func")
}

// dropNames takes the names out of parameter lists: they aren't part of the API.
func dropNames(node ast.Node) bool {
	f, ok := node.(*ast.FuncType)
	if !ok {
		return true
	}
	for _, list := range []*ast.FieldList{f.Params, f.Results} {
		if list == nil {
			continue
		}
		var unnamed []*ast.Field
		for _, field := range list.List {
			for range max(1, len(field.Names)) {
				unnamed = append(unnamed, &ast.Field{Type: field.Type})
			}
		}
		list.List = unnamed
	}
	return true
}

// text prints a node on one line.
func (p *sources) text(node ast.Node) string {
	ast.Inspect(node, dropNames)
	var out bytes.Buffer
	config := printer.Config{Mode: printer.RawFormat}
	if err := config.Fprint(&out, p.fset, node); err != nil {
		panic(err) // only if node is of a type unknown to package printer
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	return strings.NewReplacer("( ", "(", ", )", ")").Replace(text) // of a list on several lines
}
