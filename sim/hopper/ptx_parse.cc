// PTX text to a Program: PTX ISA, "Syntax", "State Spaces, Types, and Variables", "Directives".
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>

#include "base/divide.h"
#include "sim/hopper/ptx_decode.h"
#include "sim/hopper/ptx_fuse.h"
#include "sim/hopper/ptx_lexer.h"
#include "sim/hopper/ptx_registers.h"
#include "sim/hopper/ptx_warp.h"

namespace weft::ptx {
namespace {

/// A name in a scope.
struct Symbol {
  enum class Kind : uint8_t { reg, variable, label };
  Kind kind = Kind::reg;
  uint8_t bytes = 0;          ///< of a register's lane; 0: predicate
  uint32_t place = 0;         ///< a register's slot; of the first of a range
  uint32_t range = 0;         ///< registers <n>
  Slot relative;              ///< a variable: what it is relative to,
  uint64_t displacement = 0;  ///< and where; for a local one, its place in local memory
  uint64_t size = 0;
};

struct Scope {
  int parent = -1;
  std::unordered_map<std::string_view, Symbol> names;
  std::unordered_map<std::string_view, Symbol> ranges;
  std::unordered_map<std::string_view, uint32_t> labels;
};

/// Bytes of a fundamental type; 0: a predicate; -1: no type.
int bytes_of(std::string_view type) {
  if (type == ".pred") {
    return 0;
  }
  if (type == ".b128") {
    return 16;
  }
  if (type.size() < 3) {
    return -1;
  }
  const std::string_view bits =
      type.substr(type.find_first_of("0123456789") == type.npos ? type.size()
                                                                : type.find_first_of("0123456789"));
  if (bits == "8") {
    return 1;
  }
  if (bits == "16") {
    return 2;
  }
  if (bits == "32" || bits == "16x2") {
    return 4;
  }
  return bits == "64" ? 8 : -1;
}

/// An instruction's slots and how it uses them.
struct Slots {
  std::vector<Slot> slots;
  std::vector<SlotUse> uses;

  void add(Slot slot, SlotUse use = {}) {
    slots.push_back(slot);
    uses.push_back(use);
  }
};

uint64_t aligned(uint64_t x, uint64_t to) { return round_up(x, to); }

class Parser {
 public:
  Parser(std::string_view text, Program& program) : lexer_(text), program_(program) {
    scopes_.emplace_back();
  }

  bool parse() {
    next();
    while (good_ && token_.kind != Token::Kind::end) {
      module_item();
    }
    if (good_) {
      finish();
    }
    return good_;
  }
  const std::string& error() const { return error_; }

 private:
  // Tokens.
  void next() {
    token_ = lexer_.next();
    if (token_.kind == Token::Kind::bad) {
      fail("is no PTX");
    }
  }
  bool at(std::string_view text) const {
    return token_.text == text && token_.kind != Token::Kind::string;
  }
  bool take(std::string_view text) {
    if (!at(text)) {
      return false;
    }
    next();
    return true;
  }
  void expect(std::string_view text) {
    if (good_ && !take(text)) {
      fail("has '" + std::string(token_.text) + "' where '" + std::string(text) + "' is expected");
    }
  }
  void fail(const std::string& what) {
    if (good_) {
      good_ = false;
      error_ = program_.name + ", line " + std::to_string(token_.line) + ": " + what + ".";
    }
  }
  uint64_t whole_number() {
    const bool minus = take("-");
    if (token_.kind != Token::Kind::integer) {
      fail("has '" + std::string(token_.text) + "' where a number is expected");
      return 0;
    }
    const uint64_t value = token_.bits;
    next();
    return minus ? 0 - value : value;
  }
  std::string_view word() {
    if (token_.kind != Token::Kind::word) {
      fail("has '" + std::string(token_.text) + "' where a name is expected");
      return {};
    }
    const std::string_view text = token_.text;
    next();
    return text;
  }
  void skip_past(std::string_view text) {
    while (good_ && token_.kind != Token::Kind::end && !at(text)) {
      next();
    }
    expect(text);
  }

  // Scopes.
  Scope& scope() { return scopes_[static_cast<size_t>(scope_)]; }
  void open_scope() {
    Scope inner;
    inner.parent = scope_;
    scopes_.push_back(std::move(inner));
    scope_ = static_cast<int>(scopes_.size()) - 1;
  }
  const Symbol* find(std::string_view name, Symbol& of_range) const;
  void module_item();
  void skip_line();
  void variable(std::string_view space, bool external);
  void initialise(std::byte* data, size_t bytes, size_t element, std::string_view type);
  void place_variable(std::string_view space, std::string_view name, uint64_t bytes,
                      uint64_t alignment, bool external, bool initialised, size_t element,
                      std::string_view type);
  std::byte* store(uint64_t bytes, uint64_t alignment);

  // Functions.
  void function(bool entry);
  Formal formal(bool of_entry, Function& function);
  void body(Function& function);
  bool statement_or_directive();
  void registers();
  void guard();
  void instruction(std::string_view opcode, uint32_t line);
  void call(std::string_view opcode, uint32_t line);
  Operand operand();
  Operand address_operand();
  Operand named(std::string_view name);
  Operand number();
  void emit(const Statement& statement, uint32_t line);
  bool place_operands(const Statement& statement, const Form& form, Instruction& in, Slots& slots);
  bool place_operand(const Operand& operand, char letter, uint8_t bytes, Instruction& in,
                     Slots& slots, int& addresses);
  bool place_value(const Operand& operand, char letter, uint8_t bytes, Instruction& in,
                   Slots& slots);
  Slot constant(uint64_t bits, int width);
  void table_of_targets();
  void finish();

  Lexer lexer_;
  Program& program_;
  Token token_;
  bool good_ = true;
  std::string error_;
  std::deque<Scope> scopes_;
  int scope_ = 0;
  uint32_t frame_ = 0;  ///< of this function, beyond frame::kRegisters
  uint32_t function_ = 0;
  std::vector<uint32_t> frames_;  ///< by function
  SlotUses uses_;
  std::map<std::pair<uint64_t, int>, Slot> constants_;
  struct Jump {
    uint32_t instruction;
    std::string_view label;
    int scope;
    uint32_t line;
  };
  std::vector<Jump> jumps_;
  struct Table {
    uint32_t table;
    std::vector<std::string_view> labels;
    int scope;
    uint32_t line;
  };
  std::vector<Table> tables_;
  std::vector<std::vector<uint32_t>> callees_;
  Instruction pending_;  ///< the guard of the instruction that is read
  Fusion fusion_;
};

const Symbol* Parser::find(std::string_view name, Symbol& of_range) const {
  size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') {
    --digits;
  }
  for (int s = scope_; s >= 0; s = scopes_[static_cast<size_t>(s)].parent) {
    const Scope& scope = scopes_[static_cast<size_t>(s)];
    const auto found = scope.names.find(name);
    if (found != scope.names.end()) {
      return &found->second;
    }
    if (digits == name.size() || name.size() - digits > 9) {
      continue;
    }
    const auto range = scope.ranges.find(name.substr(0, digits));
    if (range == scope.ranges.end()) {
      continue;
    }
    uint32_t number = 0;
    for (size_t i = digits; i < name.size(); ++i) {
      number = number * 10 + static_cast<uint32_t>(name[i] - '0');
    }
    if (number < range->second.range) {
      of_range = range->second;
      of_range.place += number * (of_range.bytes == 0 ? 4u : of_range.bytes * kLanes);
      return &of_range;
    }
  }
  return nullptr;
}

void Parser::skip_line() {
  const uint32_t line = token_.line;
  while (good_ && token_.kind != Token::Kind::end && token_.line == line) {
    next();
  }
}

void Parser::module_item() {
  bool external = false;
  while (at(".visible") || at(".weak") || at(".extern") || at(".common")) {
    external = external || at(".extern");
    next();
  }
  const std::string_view what = token_.text;
  if (what == ".version" || what == ".target" || what == ".address_size" || what == ".file") {
    skip_line();
  } else if (what == ".section") {
    skip_past("{");
    skip_past("}");
  } else if (what == ".pragma" || what == ".alias") {
    skip_past(";");
  } else if (what == ".entry" || what == ".func") {
    next();
    function(what == ".entry");
  } else if (what == ".global" || what == ".const" || what == ".shared") {
    next();
    variable(what, external);
  } else {
    fail("has '" + std::string(what) + "' where a directive is expected");
  }
}

/// Behind the state space: alignment, type, names.
void Parser::variable(std::string_view space, bool external) {
  uint64_t alignment = 0;
  if (take(".align")) {
    alignment = whole_number();
  }
  size_t elements = 1;
  if (at(".v2") || at(".v4")) {
    elements = at(".v2") ? 2 : 4;
    next();
  }
  const std::string_view type = word();
  const int element = bytes_of(type);
  if (!good_ || element <= 0) {
    fail("has a variable of type '" + std::string(type) + "'");
    return;
  }
  do {
    const std::string_view name = word();
    uint64_t bytes = static_cast<uint64_t>(element) * elements;
    while (good_ && take("[")) {
      bytes *= at("]") ? 0 : whole_number();
      expect("]");
    }
    if (bytes > (1u << 30)) {
      fail("has a variable of " + std::to_string(bytes) + " bytes");
    }
    const uint64_t to = alignment != 0 ? alignment : static_cast<uint64_t>(element) * elements;
    if (!good_ || to == 0 || (to & (to - 1)) != 0) {
      fail("has an alignment that is no power of two");
      return;
    }
    const bool initialised = take("=");
    place_variable(space, name, bytes, to, external, initialised, static_cast<size_t>(element),
                   type);
  } while (good_ && take(","));
  expect(";");
}

std::byte* Parser::store(uint64_t bytes, uint64_t alignment) {
  const uint64_t at = aligned(program_.stored, alignment);
  if (bytes > Program::kMostStored || at > Program::kMostStored - bytes) {
    fail("has variables of more than 64 MiB");
    return nullptr;
  }
  program_.stored = at + bytes;
  return program_.storage + at;
}

void Parser::place_variable(std::string_view space, std::string_view name, uint64_t bytes,
                            uint64_t alignment, bool external, bool initialised, size_t element,
                            std::string_view type) {
  Symbol symbol;
  symbol.kind = Symbol::Kind::variable;
  symbol.size = bytes;
  if (space == ".shared") {
    symbol.relative = {frame::kShared};
    if (external || bytes == 0) {  // dynamic: behind all that is static
      symbol.relative = {frame::kDynamic};
      program_.dynamic_alignment =
          std::max(program_.dynamic_alignment, static_cast<uint32_t>(alignment));
    } else {
      program_.shared_bytes = static_cast<uint32_t>(aligned(program_.shared_bytes, alignment));
      symbol.displacement = program_.shared_bytes;
      program_.shared_bytes += static_cast<uint32_t>(bytes);
    }
  } else if (space == ".local" || space == ".param") {
    symbol.relative = {frame::kLocal};
    program_.local_bytes =
        static_cast<uint32_t>(aligned(program_.local_bytes, std::max<uint64_t>(alignment, 16)));
    symbol.displacement = program_.local_bytes;
    program_.local_bytes += static_cast<uint32_t>(bytes);
  } else {
    symbol.relative = {frame::kZero};
    std::byte* data = store(bytes, std::max<uint64_t>(alignment, 16));
    if (!good_) {
      return;
    }
    symbol.displacement = reinterpret_cast<uint64_t>(data);
    program_.variables[std::string(name)] = {data, bytes};
    if (initialised) {
      initialise(data, bytes, element, type);
      initialised = false;
    }
  }
  if (initialised) {
    fail("initialises a variable of a space that has no initial values");
  }
  scope().names[name] = symbol;
}

/// Numbers, addresses of variables, lists of them.
void Parser::initialise(std::byte* data, size_t bytes, size_t element, std::string_view type) {
  int depth = 0;
  size_t at_byte = 0;
  do {
    while (take("{")) {
      ++depth;
    }
    Operand value;
    if (token_.kind == Token::Kind::word) {
      const bool generic = take("generic");
      if (generic) {
        expect("(");
      }
      value = named(word());
      if (generic) {
        expect(")");
      }
      value.bits = static_cast<uint64_t>(value.displacement);
      if (value.kind != Operand::Kind::symbol || value.slot.offset != frame::kZero) {
        fail("initialises a variable with what is no address of a variable");
      }
    } else if (!at("}")) {
      value = number();
    }
    if (!good_) {
      return;
    }
    if (value.kind != Operand::Kind::none) {
      if (at_byte + element > bytes) {
        fail("initialises more than a variable has");
        return;
      }
      uint64_t bits = value.bits;
      if (type == ".f64" && value.literal == Operand::Literal::f32) {
        bits = std::bit_cast<uint64_t>(
            static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits))));
      } else if (type == ".f32" && value.literal == Operand::Literal::f64) {
        bits = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
      }
      std::memcpy(data + at_byte, &bits, std::min<size_t>(element, 8));
      at_byte += element;
    }
    while (depth > 0 && take("}")) {
      --depth;
    }
  } while (good_ && depth > 0 && take(","));
  if (depth != 0) {
    fail("has an initial value whose braces do not match");
  }
}

Formal Parser::formal(bool of_entry, Function& function) {
  if (!at(".param") && !at(".reg")) {
    fail("has '" + std::string(token_.text) + "' where .param is expected");
    return {};
  }
  next();
  uint64_t alignment = 0;
  std::string_view type;
  while (good_ && token_.kind == Token::Kind::word && token_.text.starts_with('.')) {
    if (take(".align")) {
      alignment = whole_number();
    } else if (at(".ptr") || at(".global") || at(".const") || at(".shared") || at(".local")) {
      next();
    } else {
      type = word();
    }
  }
  const int element = bytes_of(type);
  if (element <= 0) {
    fail("has a parameter of type '" + std::string(type) + "'");
    return {};
  }
  const std::string_view name = word();
  uint64_t bytes = static_cast<uint64_t>(element);
  while (take("[")) {
    bytes *= at("]") ? 0 : whole_number();
    expect("]");
  }
  alignment = alignment == 0 ? static_cast<uint64_t>(element) : alignment;
  if (!good_ || bytes > 32768 || alignment > 4096 || (alignment & (alignment - 1)) != 0) {
    fail("has a parameter of " + std::to_string(bytes) + " bytes");
    return {};
  }
  if (!of_entry) {
    place_variable(".param", name, bytes, alignment, false, false, 1, type);
    return {static_cast<uint32_t>(scope().names[name].displacement), static_cast<uint32_t>(bytes)};
  }
  uint64_t place = 0;
  if (!function.formals.empty()) {
    place = function.formals.back().offset + function.formals.back().bytes;
  }
  place = aligned(place, alignment);
  Symbol symbol;
  symbol.kind = Symbol::Kind::variable;
  symbol.relative = {frame::kParameters};
  symbol.displacement = place;
  symbol.size = bytes;
  scope().names[name] = symbol;
  function.parameters.push_back({static_cast<int32_t>(bytes), static_cast<int32_t>(alignment)});
  return {static_cast<uint32_t>(place), static_cast<uint32_t>(bytes)};
}

void Parser::function(bool entry) {
  Function function;
  function.entry = entry;
  open_scope();
  const int outer = scopes_[static_cast<size_t>(scope_)].parent;
  if (take("(")) {
    while (good_ && !at(")")) {
      function.returns.push_back(formal(false, function));
      take(",");
    }
    expect(")");
  }
  function.name = std::string(word());
  if (take("(")) {
    while (good_ && !at(")")) {
      function.formals.push_back(formal(entry, function));
      take(",");
    }
    expect(")");
  }
  while (good_ && !at("{") && !at(";")) {  // .maxntid 256, 1, 1; .minnctapersm 1; .noreturn; ...
    if (token_.kind == Token::Kind::end) {
      fail("ends within the head of " + function.name);
    }
    next();
  }
  auto [known, fresh] = program_.function_by_name.try_emplace(
      function.name, static_cast<uint32_t>(program_.functions.size()));
  if (fresh) {
    program_.functions.emplace_back();
    frames_.push_back(0);
    callees_.emplace_back();
  }
  function_ = known->second;
  if (at(";")) {
    next();
    if (!program_.functions[function_].defined) {
      program_.functions[function_] = function;
    }
    scope_ = outer;
    return;
  }
  if (program_.functions[function_].defined) {
    fail("defines " + function.name + " again");
    return;
  }
  body(function);
  program_.functions[function_] = std::move(function);
  scope_ = outer;
}

void Parser::body(Function& function) {
  frame_ = 0;
  fusion_.forget();
  jumps_.clear();
  tables_.clear();
  function.begin = static_cast<uint32_t>(program_.code.size());
  expect("{");
  int depth = 1;
  while (good_ && depth > 0) {
    if (take("{")) {
      ++depth;
      open_scope();
    } else if (at("}")) {
      --depth;
      if (depth > 0) {
        scope_ = scope().parent;
      }
      next();
    } else if (!statement_or_directive()) {
      return;
    }
  }
  // Who runs off the end returns.
  Statement end;
  end.opcode = "ret";
  end.words = {"ret"};
  pending_ = {};
  emit(end, token_.line);
  const auto resolve = [&](std::string_view label, int scope, uint32_t line, uint32_t& place) {
    for (int s = scope; s >= 0; s = scopes_[static_cast<size_t>(s)].parent) {
      const auto& labels = scopes_[static_cast<size_t>(s)].labels;
      const auto found = labels.find(label);
      if (found != labels.end()) {
        place = found->second;
        return;
      }
    }
    token_.line = line;
    fail("branches to " + std::string(label) + ", which is nowhere");
  };
  for (const Jump& jump : jumps_) {
    uint32_t place = 0;
    resolve(jump.label, jump.scope, jump.line, place);
    program_.code[jump.instruction].immediate = place;
  }
  for (const Table& table : tables_) {
    for (const std::string_view label : table.labels) {
      uint32_t place = 0;
      resolve(label, table.scope, table.line, place);
      program_.tables[table.table].push_back(place);
    }
  }
  function.end = static_cast<uint32_t>(program_.code.size());
  function.defined = true;
  frames_[function_] = frame_;
}

bool Parser::statement_or_directive() {
  if (at(".reg")) {
    next();
    registers();
  } else if (at(".local") || at(".shared") || at(".param") || at(".global") || at(".const")) {
    const std::string_view space = word();
    variable(space, false);
  } else if (at(".pragma")) {
    skip_past(";");
  } else if (at(".loc") || at(".file")) {
    skip_line();
  } else if (at(";")) {
    next();
  } else if (at("@")) {
    next();
    guard();
  } else if (token_.kind == Token::Kind::word && !token_.text.starts_with('.')) {
    const uint32_t line = token_.line;
    const std::string_view text = word();
    if (take(":")) {
      fusion_.forget();
      if (at(".branchtargets")) {
        scope().labels[text] = static_cast<uint32_t>(program_.tables.size());
        table_of_targets();
      } else if (!scope()
                      .labels.emplace(text, static_cast<uint32_t>(program_.code.size()))
                      .second) {
        fail("has the label " + std::string(text) + " twice");
      }
    } else {
      pending_ = {};
      pending_.guard = frame::kAlways;
      instruction(text, line);
    }
  } else {
    fail("has '" + std::string(token_.text) + "' where an instruction is expected");
  }
  return good_;
}

void Parser::table_of_targets() {
  Table table{static_cast<uint32_t>(program_.tables.size()), {}, scope_, token_.line};
  program_.tables.emplace_back();
  next();
  do {
    table.labels.push_back(word());
  } while (good_ && take(","));
  expect(";");
  tables_.push_back(std::move(table));
}

void Parser::registers() {
  const std::string_view type = word();
  const int bytes = bytes_of(type);
  if (!good_ || bytes < 0) {
    fail("has registers of type '" + std::string(type) + "'");
    return;
  }
  const auto lane = static_cast<uint8_t>(bytes == 0 ? 0 : std::max(bytes, 4));
  const uint32_t size = lane == 0 ? 4 : lane * static_cast<uint32_t>(kLanes);
  do {
    const std::string_view name = word();
    const bool ranged = take("<");
    const uint64_t count = ranged ? whole_number() : 1;
    if (ranged) {
      expect(">");
    }
    frame_ = static_cast<uint32_t>(aligned(frame_, lane == 0 ? 4 : 128));
    if (count > (1u << 22) || frame_ + count * size > (1u << 30)) {
      fail("has more registers than there is room for");
      return;
    }
    Symbol symbol;
    symbol.bytes = lane;
    symbol.place = frame_;
    symbol.range = static_cast<uint32_t>(count);
    (ranged ? scope().ranges : scope().names)[name] = symbol;
    frame_ += static_cast<uint32_t>(count) * size;
  } while (good_ && take(","));
  expect(";");
}

/// Behind the @: !p and the instruction.
void Parser::guard() {
  pending_ = {};
  pending_.invert = take("!") ? ~0u : 0;
  Symbol of_range;
  const std::string_view name = word();
  const Symbol* symbol = find(name, of_range);
  if (symbol == nullptr || symbol->kind != Symbol::Kind::reg || symbol->bytes != 0) {
    fail("has the guard " + std::string(name) + ", which is no predicate");
    return;
  }
  pending_.guard = frame::kRegisters + symbol->place;
  const uint32_t line = token_.line;
  instruction(word(), line);
}

Operand Parser::number() {
  Operand operand;
  operand.kind = Operand::Kind::immediate;
  const bool minus = take("-");
  if (token_.kind == Token::Kind::integer) {
    operand.bits = minus ? 0 - token_.bits : token_.bits;
  } else if (token_.kind == Token::Kind::f32) {
    operand.literal = Operand::Literal::f32;
    operand.bits = minus ? token_.bits ^ 0x80000000u : token_.bits;
  } else if (token_.kind == Token::Kind::f64) {
    operand.literal = Operand::Literal::f64;
    operand.bits = minus ? token_.bits ^ (1ull << 63) : token_.bits;
  } else {
    fail("has '" + std::string(token_.text) + "' where an operand is expected");
  }
  next();
  return operand;
}

Operand Parser::named(std::string_view name) {
  Operand operand;
  operand.text = name;
  if (name == "_") {
    return operand;
  }
  Symbol of_range;
  if (const Symbol* symbol = find(name, of_range)) {
    if (symbol->kind == Symbol::Kind::reg) {
      operand.kind = Operand::Kind::reg;
      operand.bytes = symbol->bytes;
      operand.slot = {frame::kRegisters + symbol->place};
    } else {
      operand.kind = Operand::Kind::symbol;
      operand.slot = symbol->relative;
      operand.displacement = static_cast<int64_t>(symbol->displacement);
    }
  } else if (special_register(name) != nullptr) {
    operand.kind = Operand::Kind::special;
  } else {
    operand.kind = Operand::Kind::label;
  }
  return operand;
}

Operand Parser::address_operand() {
  Operand operand;
  if (token_.kind == Token::Kind::word) {
    operand = named(word());
  } else {
    operand = number();
    operand.displacement = static_cast<int64_t>(operand.bits);
    operand.kind = Operand::Kind::symbol;
    operand.slot = {frame::kZero};
  }
  operand.address = true;
  while (good_ && (at("+") || at("-"))) {
    const bool minus = at("-");
    next();
    const auto by = static_cast<int64_t>(whole_number());
    operand.displacement += minus ? -by : by;
  }
  if (take(",")) {  // coordinates in a tensor
    operand.elements = this->operand().elements;
  }
  expect("]");
  return operand;
}

Operand Parser::operand() {
  if (take("[")) {
    return address_operand();
  }
  if (take("{")) {
    Operand vector;
    vector.kind = Operand::Kind::vector;
    while (good_ && !at("}")) {
      vector.elements.push_back(operand());
      take(",");
    }
    expect("}");
    return vector;
  }
  if (take("!")) {
    Operand inverted = operand();
    inverted.inverted = true;
    return inverted;
  }
  if (token_.kind != Token::Kind::word) {
    return number();
  }
  Operand first = named(word());
  if (take("|")) {
    Operand pair;
    pair.kind = Operand::Kind::vector;
    pair.piped = true;
    pair.elements = {first, named(word())};
    return pair;
  }
  while (good_ && first.kind == Operand::Kind::symbol && (at("+") || at("-"))) {
    const bool minus = at("-");
    next();
    const auto by = static_cast<int64_t>(whole_number());
    first.displacement += minus ? -by : by;
  }
  return first;
}

void Parser::instruction(std::string_view opcode, uint32_t line) {
  if (!good_) {
    return;
  }
  if (opcode == "call" || opcode == "call.uni") {
    fusion_.forget();
    call(opcode, line);
    return;
  }
  Statement statement;
  statement.opcode = opcode;
  for (size_t begin = 0; begin <= opcode.size();) {
    const size_t end = std::min(opcode.find('.', begin), opcode.size());
    statement.words.push_back(opcode.substr(begin, end - begin));
    begin = end + 1;
  }
  while (good_ && !at(";")) {
    statement.operands.push_back(operand());
    if (!take(",") && !at(";")) {
      fail("has '" + std::string(token_.text) + "' behind an operand");
    }
  }
  if (good_) {
    fusion_.see(statement, pending_.guard != frame::kAlways);
    emit(statement, line);
    expect(";");
  }
}

void Parser::call(std::string_view opcode, uint32_t line) {
  const auto list = [&]() {
    std::vector<Operand> operands;
    if (take("(")) {
      while (good_ && !at(")")) {
        operands.push_back(operand());
        take(",");
      }
      expect(")");
      take(",");
    }
    return operands;
  };
  const std::vector<Operand> returned = list();
  const std::string_view name = word();
  take(",");
  const std::vector<Operand> given = list();
  expect(";");
  const auto found = program_.function_by_name.find(std::string(name));
  if (!good_ || found == program_.function_by_name.end()) {
    fail("calls " + std::string(name) + ", which is not declared");
    return;
  }
  CallSite site;
  site.function = found->second;
  site.caller = function_;
  const Function& callee = program_.functions[site.function];
  if (given.size() != callee.formals.size() || returned.size() != callee.returns.size()) {
    fail("calls " + std::string(name) + " with " + std::to_string(given.size()) + " arguments");
    return;
  }
  for (size_t i = 0; i < given.size() + returned.size(); ++i) {
    const bool back = i >= given.size();
    const Operand& argument = back ? returned[i - given.size()] : given[i];
    if (argument.kind != Operand::Kind::symbol || argument.slot.offset != frame::kLocal) {
      fail("calls " + std::string(name) + " with an argument that is no .param");
      return;
    }
    (back ? site.after : site.before)
        .push_back({static_cast<uint32_t>(argument.displacement), 0, 0});
  }
  callees_[function_].push_back(site.function);
  Statement statement;
  statement.opcode = opcode;
  statement.words = {"call"};
  Operand target;
  target.kind = Operand::Kind::immediate;
  target.bits = program_.calls.size();
  statement.operands = {target};
  program_.calls.push_back(std::move(site));
  emit(statement, line);
}

Slot Parser::constant(uint64_t bits, int width) {
  if (width == 0) {
    return {(bits & 1) != 0 || bits == ~0ull ? frame::kAlways : frame::kNever};
  }
  if (width == 4) {
    bits &= 0xffffffffu;
  }
  auto [known, fresh] = constants_.try_emplace({bits, width}, Slot{});
  if (fresh) {
    known->second = {static_cast<uint32_t>(program_.constants.size() * 4) | Slot::kConstant};
    for (int i = 0; i < kLanes; ++i) {
      program_.constants.push_back(static_cast<uint32_t>(bits));
      if (width == 8) {
        program_.constants.push_back(static_cast<uint32_t>(bits >> 32));
      }
    }
  }
  return known->second;
}

/// A register or an immediate.
bool Parser::place_value(const Operand& operand, char letter, uint8_t bytes, Instruction& in,
                         Slots& slots) {
  const bool written = letter >= 'A' && letter <= 'Z';
  const char kind = written ? static_cast<char>(letter - 'A' + 'a') : letter;
  const int width = kind == 'p'                  ? 0
                    : kind == 'w' || kind == 'v' ? 4
                    : kind == 'd'                ? 8
                    : kind == 'q'                ? 16
                                                 : -1;
  if (operand.inverted) {
    in.flags |= kInverted;
  }
  if (operand.kind == Operand::Kind::none && written) {
    slots.add({});
    return true;
  }
  if (operand.kind == Operand::Kind::reg) {
    if (width >= 0 ? operand.bytes != width : operand.bytes != 4 && operand.bytes != 8) {
      return false;
    }
    slots.add(operand.slot, {operand.bytes, !written || letter == 'V', written});
    return true;
  }
  if (operand.kind != Operand::Kind::immediate || written || width == 16) {
    return false;
  }
  const int size = width >= 0 ? width : bytes == 8 ? 8 : 4;
  uint64_t bits = operand.bits;
  if (size == 4 && operand.literal == Operand::Literal::f64) {
    bits = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
  } else if (size == 8 && operand.literal == Operand::Literal::f32) {
    bits = std::bit_cast<uint64_t>(
        static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits))));
  }
  slots.add(constant(bits, size));
  return true;
}

bool Parser::place_operand(const Operand& operand, char letter, uint8_t bytes, Instruction& in,
                           Slots& slots, int& addresses) {
  if (letter == '.') {
    return true;
  }
  if (letter == 'l') {
    if (operand.kind == Operand::Kind::immediate) {
      in.immediate = static_cast<int64_t>(operand.bits);
      return true;
    }
    jumps_.push_back(
        {static_cast<uint32_t>(program_.code.size()), operand.text, scope_, token_.line});
    return operand.kind == Operand::Kind::label;
  }
  if (letter == 'a' || letter == 's') {
    if (operand.address != (letter == 'a')) {
      return false;
    }
    const bool value = operand.kind == Operand::Kind::reg;
    if (operand.kind != Operand::Kind::symbol && !(value && operand.bytes >= 4)) {
      return false;
    }
    if (!value || operand.bytes == 8) {
      in.wide |= static_cast<uint8_t>(1 << addresses);
    }
    slots.add(operand.slot, {operand.bytes, true, false});
    if (addresses == 0) {
      in.immediate = operand.displacement;
    } else if (addresses == 1) {
      in.second_displacement = operand.displacement;
    } else if (operand.displacement != 0) {
      return false;
    }
    ++addresses;
    for (const Operand& element : operand.elements) {
      if (!place_value(element, 'w', 4, in, slots)) {
        return false;
      }
    }
    return true;
  }
  if (operand.kind != Operand::Kind::vector) {
    return !operand.address && place_value(operand, letter, bytes, in, slots);
  }
  for (size_t i = 0; i < operand.elements.size(); ++i) {
    if (!place_value(operand.elements[i], operand.piped && i == 1 ? 'P' : letter, bytes, in,
                     slots)) {
      return false;
    }
  }
  return true;
}

bool Parser::place_operands(const Statement& statement, const Form& form, Instruction& in,
                            Slots& slots) {
  size_t at = 0;
  bool optional = false;
  int addresses = 0;
  for (const char letter : form.layout) {
    if (letter == '?') {
      optional = true;
      continue;
    }
    if (letter == '*') {
      return true;
    }
    if (at == statement.operands.size()) {
      return optional;
    }
    const Operand& operand = statement.operands[at];
    if (!place_operand(operand, letter, form.bytes, in, slots, addresses)) {
      return false;
    }
    if (at == 0 && operand.kind == Operand::Kind::vector) {
      in.count = static_cast<uint8_t>(operand.elements.size());
    }
    ++at;
  }
  return at == statement.operands.size();
}

Step unknown(Warp& warp, const Instruction& /*in*/, uint32_t mask) {
  return warp.fault(static_cast<uint32_t>(std::countr_zero(mask)), "is not known to the simulator");
}

void Parser::emit(const Statement& statement, uint32_t line) {
  static constexpr Found (*kFamilies[])(const Statement&) = {
      find_integer, find_compare, find_control, find_float, find_memory,
      find_convert, find_tiles,   find_async,   find_warp,  find_matrix};
  Found found;
  for (const auto family : kFamilies) {
    found = family(statement);
    if (found) {
      break;
    }
  }
  token_.line = line;
  if (!found || found->run == nullptr) {
    // Other kernels of the module need not have it.
    found = Form{};
    found->run = unknown;
    found->layout = "*";
  }
  Instruction in = pending_;
  in.run = found->run;
  in.modifier = found->modifier;
  in.flags = found->flags;
  in.bytes = found->bytes;
  in.flow = found->flow;
  in.line = line;
  Slots slots;
  if (!place_operands(statement, *found, in, slots)) {
    fail(std::string(statement.opcode) + " has operands that it cannot have");
    return;
  }
  if (statement.words[0] == "mov" && statement.words.back().ends_with("64")) {
    in.bytes = 8;
  }
  program_.slots.push_back(std::move(slots.slots));
  uses_.push_back(std::move(slots.uses));
  in.o = program_.slots.back().data();
  program_.code.push_back(in);
  program_.texts.emplace_back(statement.opcode);
  program_.function_of.push_back(function_);
}

/// Gives each function's registers their place: kernels' all the same, as only one of them runs;
/// other functions' before them.
void Parser::finish() {
  std::vector<int> state(program_.functions.size(), 0);
  const std::function<bool(uint32_t)> ends = [&](uint32_t f) {
    if (state[f] != 0) {
      return state[f] == 2;
    }
    state[f] = 1;
    const bool good = std::all_of(callees_[f].begin(), callees_[f].end(), ends);
    state[f] = 2;
    return good;
  };
  uint32_t base = 0;
  std::vector<uint32_t> bases(program_.functions.size(), 0);
  for (uint32_t f = 0; f < program_.functions.size(); ++f) {
    if (!ends(f)) {
      fail(program_.functions[f].name + " calls itself, which the simulator does not do");
      return;
    }
    if (program_.functions[f].defined) {
      frames_[f] = share_registers(program_, program_.functions[f], uses_);
    }
    if (!program_.functions[f].entry) {
      bases[f] = base;
      base = static_cast<uint32_t>(aligned(base + frames_[f], 128));
    }
  }
  uint32_t most = 0;
  for (uint32_t f = 0; f < program_.functions.size(); ++f) {
    if (program_.functions[f].entry) {
      bases[f] = base;
      most = std::max(most, frames_[f]);
    }
  }
  program_.local_bytes = static_cast<uint32_t>(aligned(program_.local_bytes, 16));
  program_.frame_bytes = static_cast<uint32_t>(aligned(frame::kRegisters + base + most, 4096));
  program_.shared_bytes =
      static_cast<uint32_t>(aligned(program_.shared_bytes, program_.dynamic_alignment));
  for (CallSite& site : program_.calls) {  // functions may be defined behind their calls
    const Function& callee = program_.functions[site.function];
    for (size_t i = 0; i < site.before.size(); ++i) {
      site.before[i].to = callee.formals[i].offset;
      site.before[i].bytes = callee.formals[i].bytes;
    }
    for (size_t i = 0; i < site.after.size(); ++i) {
      site.after[i].to = std::exchange(site.after[i].from, callee.returns[i].offset);
      site.after[i].bytes = callee.returns[i].bytes;
    }
  }
  for (size_t i = 0; i < program_.code.size(); ++i) {
    const uint32_t offset = bases[program_.function_of[i]];
    Instruction& in = program_.code[i];
    for (Slot& slot : program_.slots[i]) {
      if (!slot.none() && (slot.offset & Slot::kConstant) == 0 &&
          slot.offset >= frame::kRegisters) {
        slot.offset += offset;
      }
    }
    if (in.guard >= frame::kRegisters) {
      in.guard += offset;
    }
  }
}

}  // namespace

Result<Module> Module::parse(std::string_view text, std::string name) {
  Module module;
  auto program = std::make_shared<Program>();
  program->name = std::move(name);
  Parser parser(text, *program);
  if (!parser.parse()) {
    return input_error(parser.error());
  }
  module.program_ = std::move(program);
  return module;
}

const std::vector<Parameter>* Module::parameters(std::string_view kernel) const {
  const auto found = program_->function_by_name.find(std::string(kernel));
  if (found == program_->function_by_name.end() || !program_->functions[found->second].entry) {
    return nullptr;
  }
  return &program_->functions[found->second].parameters;
}

std::span<std::byte> Module::variable(std::string_view name) const {
  const auto found = program_->variables.find(name);
  if (found == program_->variables.end()) {
    return {};
  }
  return {found->second.data, found->second.bytes};
}

Program::Program() {
  void* memory = mmap(nullptr, kMostStored, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  WEFT_CHECK(memory != MAP_FAILED);
  storage = static_cast<std::byte*>(memory);
}
Program::~Program() { munmap(storage, kMostStored); }

}  // namespace weft::ptx
