#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <regex>

#include "model/tokenizer/unicode.h"
#include "serve/grammar/matcher.h"

namespace weft::grammar {
namespace {

using nlohmann::ordered_json;

bool has(std::span<const uint32_t> mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
}

/// A vocabulary of all bytes, these texts, and an end, which is the last.
std::shared_ptr<const Vocabulary> vocabulary(const std::vector<std::string>& texts = {}) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  tokens.insert(tokens.end(), texts.begin(), texts.end());
  tokens.emplace_back();
  const auto end = static_cast<int32_t>(tokens.size() - 1);
  return std::make_shared<const Vocabulary>(tokens, std::vector<int32_t>{end});
}

std::shared_ptr<Grammar> grammar_of(const Result<Rules>& rules,
                                    std::shared_ptr<const Vocabulary> tokens = vocabulary()) {
  if (!rules.ok()) {
    ADD_FAILURE() << rules.error().message;
    return nullptr;
  }
  auto out = Grammar::make(rules.value(), std::move(tokens));
  EXPECT_TRUE(out.ok()) << (out.ok() ? "" : out.error().message);
  return out.ok() ? out.value() : nullptr;
}

/// Whether the grammar takes all of `text`.
bool takes(const std::shared_ptr<Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return matcher.accept(text) && matcher.may_end();
}

std::string refused(const Result<Rules>& rules) {
  if (!rules.ok()) {
    return rules.error().message;
  }
  const auto grammar = Grammar::make(rules.value(), vocabulary());
  EXPECT_FALSE(grammar.ok());
  return grammar.ok() ? "" : grammar.error().message;
}

/// Draws tokens by the mask until the end; empty when `most` are not enough.
std::string drawn(const std::shared_ptr<Grammar>& grammar, const Vocabulary& tokens,
                  std::mt19937& random, size_t most = 400) {
  Matcher matcher(grammar);
  std::string out;
  for (size_t i = 0; i < most; ++i) {
    const auto mask = matcher.mask();
    std::vector<int32_t> allowed;
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (has(mask, static_cast<int32_t>(id))) {
        allowed.push_back(static_cast<int32_t>(id));
      }
    }
    if (matcher.may_end() && (random() % 4 == 0 || allowed.size() == 1)) {
      return out;
    }
    std::erase(allowed, tokens.ends()[0]);
    EXPECT_FALSE(allowed.empty()) << out;
    if (allowed.empty()) {
      return out;
    }
    std::vector<int32_t> closing;  // what ends strings and lists comes often, so that answers end
    std::copy_if(allowed.begin(), allowed.end(), std::back_inserter(closing), [&](int32_t id) {
      return tokens.bytes(id).find_first_of("\"}],:") != std::string::npos;
    });
    const auto& from = !closing.empty() && random() % 2 == 0 ? closing : allowed;
    const int32_t id = from[random() % from.size()];
    EXPECT_TRUE(matcher.accept(id)) << out << " and " << tokens.bytes(id);
    out += tokens.bytes(id);
  }
  return {};
}

// Every expression against the standard library's, over all texts of up to five of six letters.
TEST(Grammar, RegularExpressionsAreThoseOfTheStandardLibrary) {
  const char* const patterns[] = {
      "a",   "abc?",  "a*b+",    "(ab|b)*",  "[ab]{2,3}c",   "(a|ab)(c|bcd)?", "a{2}|b{0,2}c",
      ".b.", "[^a]+", "\\w\\d?", "(a?){3}b", "(?:a|b|cc)+?", "^a(b|c)*$",      "a||b",
      "()",  "(a*)*", "\\d\\D",  "[a-c1]*",  "[\\d_]+",      "\\.|\\s"};
  constexpr std::string_view kLetters = "abc1_ ";
  for (const char* pattern : patterns) {
    const auto grammar = grammar_of(read_regex(pattern));
    const std::regex expected(pattern);
    std::vector<std::string> texts = {""};
    for (size_t i = 0; i < texts.size() && texts[i].size() < 5; ++i) {
      for (const char letter : kLetters) {
        texts.push_back(texts[i] + letter);
      }
    }
    for (const std::string& text : texts) {
      ASSERT_EQ(takes(grammar, text), std::regex_match(text, expected))
          << pattern << " and '" << text << "'";
    }
  }
}

TEST(Grammar, RegularExpressionsBeyondAreRefused) {
  for (const char* pattern :
       {"(?=a)", "a(?!b)", "(a)\\1", "a**", "*a", "(a", "a)", "[a", "a{2,1}", "a{99999}", "\\b",
        "a^b", "a$b", "a|b$", "[b-a]", "\\u12", "[[:alpha:]]", "{1}", "\xff"}) {
    EXPECT_NE(refused(read_regex(pattern)).find("regular expression"), std::string::npos)
        << pattern;
  }
}

TEST(Grammar, CharactersAreUtf8) {
  const auto grammar = grammar_of(read_regex("[é-\u4e16😀-😂]+"));
  EXPECT_TRUE(takes(grammar, "éü\u0800\u4e16😁"));
  EXPECT_FALSE(takes(grammar, "è"));
  EXPECT_FALSE(takes(grammar, "\u4e17"));
  EXPECT_FALSE(takes(grammar, "😃"));
  EXPECT_FALSE(takes(grammar, "\xc3"));
  const auto any = grammar_of(read_regex("[^x]*"));
  for (char32_t c : {U'\0', U'\x7f', U'\x80', U'\u07ff', U'\u0800', U'\ud7ff', U'\ue000', U'\uffff',
                     U'\U00010000', U'\U0010ffff'}) {
    std::string text;
    tokenizer::append_utf8(text, c);
    EXPECT_TRUE(takes(any, text + "y" + text)) << static_cast<uint32_t>(c);
  }
  for (const char* bad : {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xe0\x80\x80",
                          "\xf0\x80\x80\x80"}) {
    EXPECT_FALSE(takes(any, bad));
  }
}

TEST(Grammar, GbnfIsRead) {
  const auto grammar = grammar_of(read_gbnf(R"gbnf(
# a list of sums
root ::= sum ("," sum){0,2}   # at most three
sum ::= term
    | sum2
sum2 ::= term "+" (
   sum )
term ::= [0-9]+ | "\x41\u00e9" | "(" sum ")" | [^0-9a-z+,()A"\n]
)gbnf"));
  for (const char* text : {"1", "1+2", "12+(3+4),5", "Aé", "((7))", "1,2,3", "é+ü"}) {
    EXPECT_TRUE(takes(grammar, text)) << text;
  }
  for (const char* text : {"", "1+", "1,2,3,4", "a", "(1", "1)", "\n"}) {
    EXPECT_FALSE(takes(grammar, text)) << text;
  }
}

TEST(Grammar, WhatIsWrongOfAGrammarIsSaid) {
  const std::pair<const char*, const char*> cases[] = {
      {"root ::= root \"a\"", "begins with itself"},
      {"root ::= a\na ::= b? root", "b"},
      {"root ::= x", "'x'"},
      {"a ::= \"a\"", "root"},
      {"root ::= \"a", "not closed"},
      {"root ::= [a", "not closed"},
      {"root ::= (\"a\"", "')'"},
      {"root = a", "'::='"},
      {"root ::= \"a\"\nroot ::= \"b\"", "twice"},
      {"root ::= \"\\q\"", "escape"},
      {"root ::= [b-a]", "range"},
      {"root ::= \"a\"{2,1}", "least"},
      {"root ::= \"a\"{100000}", "repetitions"},
      {"root ::= ((\"a\"{9999}){9999}){9999}", "states"},
      {"root ::= \"a\" )", "end of the rule"}};
  for (const auto& [text, wanted] : cases) {
    EXPECT_NE(refused(read_gbnf(text)).find(wanted), std::string::npos)
        << text << ": " << refused(read_gbnf(text));
  }
  EXPECT_NE(refused(read_gbnf("root ::= a \"x\"\na ::= b*\nb ::= root")).find("begins with itself"),
            std::string::npos);
  EXPECT_NE(refused(read_gbnf("root ::= (((\"\"{9999}){9999}){9999}){9999}")).find("too large"),
            std::string::npos);
  EXPECT_FALSE(read_gbnf(std::string("root ::= ") + std::string(100000, '(')).ok());
  const std::string_view cut = "root ::= \"a\\";  // in memory that ends where the text does
  const std::vector<char> exact(cut.begin(), cut.end());
  EXPECT_NE(refused(read_gbnf({exact.data(), exact.size()})).find("escape"), std::string::npos);
}

// The mask of every state that random texts come to, against trying each token by itself.
TEST(Grammar, MasksAreWhatTryingEveryTokenGives) {
  std::mt19937 random(7);
  const char* const grammars[] = {
      "root ::= [ab]* \"c\" | \"(\" root \")\" root?",
      "root ::= \"a\" root \"b\" | \"ab\"",
      "root ::= x* \"c\"\nx ::= \"a\" | \"b\" y\ny ::= x \")\" | \"\"",
      "root ::= (\"(\" root \")\" | [a-c])* ",
      "root ::= a a a\na ::= b | \"a\" | \"\"\nb ::= \"b\" a \"c\"",
      "root ::= ([ab]{2,4} \"c\"){1,3}",
  };
  std::vector<std::string> texts;
  constexpr std::string_view kLetters = "abc()";
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (size_t size = 2 + random() % 5; text.size() < size;) {
      text += kLetters[random() % kLetters.size()];
    }
    texts.push_back(text);
  }
  const auto tokens = vocabulary(texts);
  for (const char* text : grammars) {
    const auto grammar = grammar_of(read_gbnf(text), tokens);
    for (int round = 0; round < 20; ++round) {
      Matcher matcher(grammar);
      for (int step = 0; step < 12; ++step) {
        const std::vector<uint32_t> mask(matcher.mask().begin(), matcher.mask().end());
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < static_cast<int32_t>(tokens->size()) - 1; ++id) {
          Matcher trial = matcher;
          const bool right = trial.accept(id);
          ASSERT_EQ(has(mask, id), right) << text << ", token '" << tokens->bytes(id) << "'";
          if (right) {
            allowed.push_back(id);
          }
        }
        ASSERT_EQ(has(mask, tokens->ends()[0]), matcher.may_end() || allowed.empty());
        if (allowed.empty()) {
          break;
        }
        ASSERT_TRUE(matcher.accept(allowed[random() % allowed.size()]));
      }
    }
  }
}

/// A small validator, by the standard's words, of the keywords that are used below.
bool valid(const ordered_json& schema, const ordered_json& value, const ordered_json& root) {
  if (schema.is_boolean()) {
    return schema.get<bool>();
  }
  if (schema.contains("$ref")) {
    return valid(root.at(ordered_json::json_pointer(schema["$ref"].get<std::string>().substr(1))),
                 value, root);
  }
  if (schema.contains("anyOf")) {
    return std::any_of(schema["anyOf"].begin(), schema["anyOf"].end(),
                       [&](const auto& one) { return valid(one, value, root); });
  }
  if (schema.contains("enum") &&
      std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) {
    return false;
  }
  if (schema.contains("type")) {
    const auto is = [&](const std::string& type) {
      return type == "object"    ? value.is_object()
             : type == "array"   ? value.is_array()
             : type == "string"  ? value.is_string()
             : type == "number"  ? value.is_number()
             : type == "integer" ? value.is_number_integer()
             : type == "boolean" ? value.is_boolean()
                                 : value.is_null();
    };
    const auto& type = schema["type"];
    if (type.is_array() ? std::none_of(type.begin(), type.end(), is) : !is(type)) {
      return false;
    }
  }
  if (value.is_number()) {
    const double x = value.get<double>();
    if (x < schema.value("minimum", x) || x > schema.value("maximum", x) ||
        x <= schema.value("exclusiveMinimum", x - 1e300) ||
        x >= schema.value("exclusiveMaximum", x + 1e300)) {
      return false;
    }
  }
  if (value.is_string()) {
    size_t characters = 0;
    for (const char c : value.get<std::string>()) {
      characters += (static_cast<uint8_t>(c) & 0xc0) != 0x80 ? 1 : 0;
    }
    if (characters < schema.value("minLength", size_t{0}) ||
        characters > schema.value("maxLength", size_t{1} << 40)) {
      return false;
    }
    if (schema.contains("pattern") &&
        !std::regex_search(value.get<std::string>(),
                           std::regex(schema["pattern"].get<std::string>()))) {
      return false;
    }
  }
  if (value.is_array()) {
    const size_t fixed = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < fixed ? !valid(schema["prefixItems"][i], value[i], root)
                    : schema.contains("items") && !valid(schema["items"], value[i], root)) {
        return false;
      }
    }
    return value.size() >= schema.value("minItems", size_t{0}) &&
           value.size() <= schema.value("maxItems", size_t{1} << 40);
  }
  if (value.is_object()) {
    for (const auto& name : schema.value("required", ordered_json::array())) {
      if (!value.contains(name.get<std::string>())) {
        return false;
      }
    }
    for (const auto& [name, member] : value.items()) {
      const bool known = schema.contains("properties") && schema["properties"].contains(name);
      if (known ? !valid(schema["properties"][name], member, root)
                : schema.contains("additionalProperties") &&
                      !valid(schema["additionalProperties"], member, root)) {
        return false;
      }
    }
  }
  return true;
}

const char* const kSchemas[] = {
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": -12, "maximum": 130}, "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}}}, "required": ["name", "age", "tags"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"enum": ["x", 1, null, {"y": [2]}]}}, "required": ["b"]})",
    R"({"type": "object", "properties": {"a": {"type": "boolean"}, "ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
    R"({"type": "object", "required": ["z", "y"]})",
    R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}], "items": {"type": "null"}, "minItems": 1, "maxItems": 4})",
    R"({"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}, {"type": "null"}], "items": false})",
    R"({"type": "array", "items": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2}, "minItems": 2, "maxItems": 3})",
    R"({"anyOf": [{"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$"}, {"type": "integer", "exclusiveMinimum": 7, "maximum": 1234}]})",
    R"({"type": ["string", "null"], "minLength": 2, "maxLength": 5})",
    R"({"type": "string", "pattern": "b\"?c"})",
    R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"], "additionalProperties": false}}})",
    R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1})",
    R"({})",
    R"({"type": "object"})",
};

TEST(Grammar, WhatSchemasAllowIsValid) {
  std::mt19937 random(11);
  const auto tokens = vocabulary({"\",", "\":",  "\": ", "{\"", "}",    "\"}", "null",    "true",
                                  "fal", "se",   "[]",   "],",  ", \"", "12",  "-1",      "0.",
                                  "e5",  "name", "age",  "ab",  "abc",  "\n ", "\\u00e9", "é"});
  for (const char* text : kSchemas) {
    const auto schema = ordered_json::parse(text);
    const auto grammar = grammar_of(read_schema(schema), tokens);
    int ended = 0;
    for (int round = 0; round < 100; ++round) {
      const std::string answer = drawn(grammar, *tokens, random);
      if (answer.empty()) {
        continue;
      }
      ++ended;
      const auto value = ordered_json::parse(answer, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << text << "\n" << answer;
      ASSERT_TRUE(valid(schema, value, schema)) << text << "\n" << answer;
    }
    EXPECT_GE(ended, 30) << text;
  }
}

TEST(Grammar, SchemasAllowWhatIsMeant) {
  const auto taken = [](const char* schema, std::string_view text) {
    return takes(grammar_of(read_schema(ordered_json::parse(schema))), text);
  };
  EXPECT_TRUE(
      taken(kSchemas[0], R"({"name": "Zoë \"Z\" \u00e9", "age": -3, "tags": ["a", "bcd"]})"));
  EXPECT_TRUE(taken(kSchemas[0], R"({"name":"","age":130,"tags":[]})"));
  EXPECT_FALSE(taken(kSchemas[0], R"({"name":"","age":131,"tags":[]})"));
  EXPECT_FALSE(taken(kSchemas[0], R"({"age":1,"name":"","tags":[]})"));
  EXPECT_FALSE(taken(kSchemas[0], R"({"name":"","age":1})"));
  EXPECT_TRUE(taken(kSchemas[1], R"({"b": null})"));
  EXPECT_TRUE(taken(kSchemas[1], R"({"a": true, "b": null, "c": {"y":[2]}})"));
  EXPECT_FALSE(taken(kSchemas[1], R"({"a": true, "c": 1})"));
  EXPECT_FALSE(taken(kSchemas[1], R"({"b": null,})"));
  EXPECT_TRUE(taken(kSchemas[2], R"({})"));
  EXPECT_TRUE(taken(kSchemas[2], R"({"x": 1, "abc": 2})"));
  EXPECT_FALSE(taken(kSchemas[2], R"({"x": 1, "ab": 2})"));
  EXPECT_FALSE(taken(kSchemas[2], R"({"x": 1, "a": true})"));
  for (int i = -1; i < 1300; ++i) {
    ASSERT_EQ(taken(R"({"type":"integer","minimum":17,"maximum":1203})", std::to_string(i)),
              i >= 17 && i <= 1203)
        << i;
    ASSERT_EQ(
        taken(R"({"type":"integer","minimum":-1000,"exclusiveMaximum":-9})", std::to_string(-i)),
        -i >= -1000 && -i < -9)
        << -i;
  }
  EXPECT_TRUE(taken(R"({"type":"string","format":"date-time"})", R"("2026-01-26T12:00:00.5Z")"));
  EXPECT_FALSE(taken(R"({"type":"string","format":"date"})", R"("2026-02-30")"));
  EXPECT_TRUE(
      taken(R"({"type":"string","format":"uuid"})", R"("123e4567-e89b-12d3-a456-426614174000")"));
  const auto object = grammar_of(json_object());
  EXPECT_TRUE(takes(object, R"({"a": [1, -2.5e3, "x", {"b": {}}, [], null], "": true})"));
  EXPECT_FALSE(takes(object, "[1]"));
  EXPECT_FALSE(takes(object, R"({"a": 01})"));
  const auto chosen = grammar_of(read_choice(ordered_json::parse(R"(["yes", "no", "yesterday"])")));
  EXPECT_TRUE(takes(chosen, "yes"));
  EXPECT_TRUE(takes(chosen, "yesterday"));
  EXPECT_FALSE(takes(chosen, "yest"));
}

TEST(Grammar, AnUnsupportedKeywordIsNamed) {
  for (const char* keyword :
       {"oneOf", "not", "if", "patternProperties", "uniqueItems", "contains", "multipleOf",
        "propertyNames", "dependentRequired", "minProperties", "unevaluatedItems", "madeUp"}) {
    ordered_json schema = {{"type", "object"}};
    schema["properties"]["deep"][keyword] = 1;
    const std::string error = refused(read_schema(schema));
    EXPECT_NE(error.find(fmt::format("'{}'", keyword)), std::string::npos) << error;
    EXPECT_NE(error.find("#/properties/deep"), std::string::npos) << error;
  }
  const char* const schemas[] = {
      R"(5)",
      R"(false)",
      R"({"type": "text"})",
      R"({"$ref": "#/nothing"})",
      R"({"$ref": "http://x"})",
      R"({"$ref": "#"})",
      R"({"type": "string", "format": "iri"})",
      R"({"type": "string", "pattern": "(?=a)b"})",
      R"({"type": "array", "minItems": 3, "maxItems": 2})",
      R"({"type": "integer", "minimum": 3, "maximum": 2})",
      R"({"enum": []})",
      R"({"anyOf": []})",
      R"({"type": "object", "properties": {}, "additionalProperties": false, "required": ["a"]})",
      R"({"type": "string", "maxLength": 1e9})",
      R"({"anyOf": [{}], "type": "object"})",
  };
  for (const char* schema : schemas) {
    EXPECT_FALSE(refused(read_schema(ordered_json::parse(schema))).empty()) << schema;
  }
}

/// As many tokens as Llama 3 has, of its kinds: words with and without a space, numbers,
/// punctuation, scripts.
std::shared_ptr<const Vocabulary> large_vocabulary() {
  std::mt19937 random(3);
  std::vector<std::string> texts;
  for (int i = 0; i < 1000; ++i) {
    texts.push_back(std::to_string(i));
  }
  constexpr std::string_view kSigns = "{}[]()\":,.;-_/\\'<>=+*#!?& \n";
  for (const char a : kSigns) {
    for (const char b : kSigns) {
      texts.push_back({a, b});
      texts.push_back({a, b, kSigns[random() % kSigns.size()]});
    }
  }
  constexpr std::string_view kLetters = "eeeeettttaaaooiinnsshhrrddllccuummwwffggyyppbbvk";
  while (texts.size() < 110'000) {
    std::string word(random() % 2, ' ');
    for (size_t size = word.size() + 1 + random() % 9; word.size() < size;) {
      word += kLetters[random() % kLetters.size()];
    }
    word += random() % 40 == 0 ? "\"" : random() % 40 == 0 ? "\":" : "";
    texts.push_back(word);
  }
  while (texts.size() < 128'000) {
    std::string word;
    for (size_t size = 1 + random() % 4; size > 0; --size) {
      const auto c = static_cast<char32_t>(0x4e00 + random() % 0x2000);
      word += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3f)),
               static_cast<char>(0x80 | (c & 0x3f))};
    }
    texts.push_back(word);
  }
  return vocabulary(texts);
}

// A mask is to be there before a step of decode ends: 50 us at the median. Printed, and held with
// room for a busy machine.
TEST(Grammar, MasksOfALargeVocabularyAreFast) {
  using Clock = std::chrono::steady_clock;
  const auto microseconds = [](Clock::duration time) {
    return std::chrono::duration<double, std::micro>(time).count();
  };
  const auto tokens = large_vocabulary();
  std::mt19937 random(5);
  for (const size_t which : {size_t{0}, size_t{2}, size_t{10}, size_t{12}}) {
    const auto start = Clock::now();
    const auto grammar = grammar_of(read_schema(ordered_json::parse(kSchemas[which])), tokens);
    const double compiled = microseconds(Clock::now() - start);
    std::vector<double> times;
    for (int answer = 0; answer < 30; ++answer) {
      Matcher matcher(grammar);
      for (int i = 0; i < 100; ++i) {
        const auto before = Clock::now();
        const auto mask = matcher.mask();
        times.push_back(microseconds(Clock::now() - before));
        std::vector<int32_t> closing;
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < static_cast<int32_t>(tokens->size()) - 1; ++id) {
          if (has(mask, id)) {
            allowed.push_back(id);
            if (tokens->bytes(id).find_first_of("\"}],:") != std::string::npos) {
              closing.push_back(id);
            }
          }
        }
        const auto& from = !closing.empty() && random() % 2 == 0 ? closing : allowed;
        if (from.empty() || !matcher.accept(from[random() % from.size()])) {
          break;
        }
      }
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    fmt::print(
        "schema {}: compiled in {:.0f} us; {} masks of {} tokens: median {:.1f} us, p90 {:.1f}, "
        "p99 {:.1f}, most {:.0f}\n",
        which, compiled, times.size(), tokens->size(), median, times[times.size() * 9 / 10],
        times[times.size() * 99 / 100], times.back());
    EXPECT_LT(median, 200) << kSchemas[which];
  }
}

}  // namespace
}  // namespace weft::grammar
