#include "model/tokenizer/post_processor.h"

#include <fmt/format.h>

namespace weft::tokenizer {
namespace {

constexpr size_t kMostIds = 1024;

Result<int32_t> read_id(const Field& field, const Vocabulary& vocabulary) {
  WEFT_ASSIGN(const int64_t id, field.number(vocabulary.size() - 1));
  if (!vocabulary.contains(id)) {
    return field.error("no token has this id");
  }
  return static_cast<int32_t>(id);
}

/// The ids that a special token of a template stands for.
Status add_special(const Field& tokens, const Field& piece, const Vocabulary& vocabulary,
                   std::vector<int32_t>& ids) {
  WEFT_ASSIGN(const std::string name, piece["id"].text());
  const Field token = tokens[name];
  if (token.missing()) {
    return piece["id"].error("is not one of the template's special_tokens");
  }
  WEFT_ASSIGN(const std::vector<Field> fields, token["ids"].elements());
  for (const Field& field : fields) {
    WEFT_ASSIGN(const int32_t id, read_id(field, vocabulary));
    ids.push_back(id);
  }
  return {};
}

/// Puts one processor around what is there already.
void wrap(const std::vector<int32_t>& before, const std::vector<int32_t>& after,
          PostProcessor& processor) {
  processor.before.insert(processor.before.begin(), before.begin(), before.end());
  processor.after.insert(processor.after.end(), after.begin(), after.end());
}

Status add_template(const Field& field, const Vocabulary& vocabulary, PostProcessor& processor) {
  const Field single = field["single"];
  WEFT_ASSIGN(const std::vector<Field> pieces, single.elements());
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool text_seen = false;
  for (const Field& piece : pieces) {
    const Field sequence = piece["Sequence"];
    const Field special = piece["SpecialToken"];
    if (!special.missing()) {
      WEFT_TRY(
          add_special(field["special_tokens"], special, vocabulary, text_seen ? after : before));
    } else if (!sequence.missing()) {
      WEFT_ASSIGN(const std::string id, sequence["id"].text());
      if (id != "A" || text_seen) {
        return single.error("must hold the sequence A, once, and no other");
      }
      text_seen = true;
    } else {
      return piece.error("must be a \"Sequence\" or a \"SpecialToken\"");
    }
    if (before.size() + after.size() > kMostIds) {
      return single.error(fmt::format("adds more than {} tokens", kMostIds));
    }
  }
  if (!text_seen) {
    return single.error("must hold the sequence A, once, and no other");
  }
  wrap(before, after, processor);
  return {};
}

/// The pair ["token", id] of BertProcessing and RobertaProcessing.
Result<int32_t> read_pair(const Field& field, const Vocabulary& vocabulary) {
  WEFT_ASSIGN(const std::vector<Field> pair, field.elements());
  if (pair.size() != 2) {
    return field.error("must be a token and its id");
  }
  return read_id(pair[1], vocabulary);
}

Status add_processor(const Field& field, int depth, const Vocabulary& vocabulary,
                     PostProcessor& processor) {
  WEFT_ASSIGN(const std::string type, field.type());
  if (depth > kMostNesting || processor.before.size() + processor.after.size() > kMostIds) {
    return field.error(
        fmt::format("adds more than {} tokens, or more than {} stand inside each other", kMostIds,
                    kMostNesting));
  }
  if (type == "Sequence") {
    WEFT_ASSIGN(const std::vector<Field> fields, field["processors"].elements());
    for (const Field& element : fields) {
      WEFT_TRY(add_processor(element, depth + 1, vocabulary, processor));
    }
  } else if (type == "TemplateProcessing") {
    WEFT_TRY(add_template(field, vocabulary, processor));
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    WEFT_ASSIGN(const int32_t first, read_pair(field["cls"], vocabulary));
    WEFT_ASSIGN(const int32_t last, read_pair(field["sep"], vocabulary));
    wrap({first}, {last}, processor);
  } else if (type != "ByteLevel") {  // that one moves offsets, which Weft does not give
    return field["type"].error(
        "an unknown post-processor; those known are Sequence, TemplateProcessing, ByteLevel, "
        "BertProcessing and "
        "RobertaProcessing");
  }
  return {};
}

}  // namespace

Result<PostProcessor> PostProcessor::parse(const Field& field, const Vocabulary& vocabulary) {
  PostProcessor processor;
  if (!field.missing()) {
    WEFT_TRY(add_processor(field, 0, vocabulary, processor));
  }
  return processor;
}

}  // namespace weft::tokenizer
