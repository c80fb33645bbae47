#include "model/tokenizer/json.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/json.h"

namespace weft::tokenizer {
namespace {

using nlohmann::json;

std::string shown(const json& value) {
  if (value.is_structured()) {
    return value.is_array() ? "a list" : "an object";
  }
  return show(value);
}

/// Takes the vocabulary and the merges out of the stream of parse events, so that their hundreds of
/// thousands of entries never become document nodes.
class Collector {
 public:
  explicit Collector(Document& document) : document_(document) {}

  /// Called for every parsed piece; false drops it from the document.
  bool operator()(int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::key) {
      return key(depth, value);
    }
    if (in_vocabulary_) {
      return vocabulary_event(depth, event, value);
    }
    if (in_merges_) {
      return merges_event(depth, event, value);
    }
    return true;
  }

 private:
  bool key(int depth, json& name) {
    if (in_vocabulary_ && depth == 3) {
      token_ = std::move(name.get_ref<std::string&>());
      return false;
    }
    if (depth == 1) {
      in_model_ = name.get_ref<const std::string&>() == "model";
    }
    if (depth <= 2) {
      in_vocabulary_ = depth == 2 && in_model_ && name.get_ref<const std::string&>() == "vocab";
      in_merges_ = depth == 2 && in_model_ && name.get_ref<const std::string&>() == "merges";
    }
    return true;
  }

  bool vocabulary_event(int depth, json::parse_event_t event, const json& value) {
    if (depth < 3) {
      return true;
    }
    if (depth == 3 && event == json::parse_event_t::value) {
      const bool whole = value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{1} << 62;
      document_.vocabulary.emplace_back(std::move(token_), whole ? value.get<int64_t>() : -1);
    } else {
      complain("model.vocab", "a value that is no number");
    }
    return event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
  }

  bool merges_event(int depth, json::parse_event_t event, json& value) {
    if (depth < 3) {
      return true;
    }
    if (depth == 3 && event == json::parse_event_t::value && value.is_string()) {
      const auto& merge = value.get_ref<const std::string&>();
      const size_t space = merge.find(' ');
      if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos) {
        complain("model.merges",
                 fmt::format("{}, which is not two tokens with a space between", show(merge)));
      } else if (!merge.starts_with("#version")) {
        document_.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
      }
      return false;
    }
    if (depth == 3 && event == json::parse_event_t::array_start) {
      pair_.clear();
      return true;
    }
    if (depth == 4 && event == json::parse_event_t::value && value.is_string()) {
      pair_.push_back(std::move(value.get_ref<std::string&>()));
      return false;
    }
    if (depth == 3 && event == json::parse_event_t::array_end) {
      if (pair_.size() == 2) {
        document_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      } else {
        complain("model.merges", "a list of other than two tokens");
      }
      return false;
    }
    complain("model.merges", "something that is neither a text nor a list of two texts");
    return event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
  }

  void complain(std::string_view field, std::string_view what) {
    if (document_.problem.empty()) {
      document_.problem =
          fmt::format("{}: entry {} is {}", field,
                      in_vocabulary_ ? document_.vocabulary.size() : document_.merges.size(), what);
    }
  }

  Document& document_;
  bool in_model_ = false;
  bool in_vocabulary_ = false;
  bool in_merges_ = false;
  std::string token_;
  std::vector<std::string> pair_;
};

}  // namespace

Field Field::operator[](std::string_view name) const {
  std::string path = fmt::format("{}{}{}", path_, path_.ends_with(": ") ? "" : ".", name);
  if (value_ == nullptr || !value_->is_object()) {
    return {nullptr, std::move(path)};
  }
  const auto member = value_->find(name);
  return {member == value_->end() ? nullptr : &*member, std::move(path)};
}

Result<std::string> Field::text() const {
  if (missing() || !value_->is_string()) {
    return wrong("a text");
  }
  return value_->get<std::string>();
}

Result<bool> Field::flag() const {
  if (missing() || !value_->is_boolean()) {
    return wrong("true or false");
  }
  return value_->get<bool>();
}

Result<bool> Field::flag_or(bool otherwise) const {
  if (missing()) {
    return otherwise;
  }
  return flag();
}

Result<int64_t> Field::number(int64_t most) const {
  if (missing() || !value_->is_number_unsigned() ||
      value_->get<uint64_t>() > static_cast<uint64_t>(most)) {
    return wrong(fmt::format("a whole number from 0 to {}", most));
  }
  return value_->get<int64_t>();
}

Result<std::vector<Field>> Field::elements() const {
  if (missing() || !value_->is_array()) {
    return wrong("a list");
  }
  std::vector<Field> fields;
  fields.reserve(value_->size());
  for (const json& element : *value_) {
    fields.emplace_back(&element, fmt::format("{}[{}]", path_, fields.size()));
  }
  return fields;
}

Result<std::vector<std::pair<std::string, Field>>> Field::members() const {
  if (missing() || !value_->is_object()) {
    return wrong("an object");
  }
  std::vector<std::pair<std::string, Field>> fields;
  for (const auto& [name, value] : value_->items()) {
    fields.emplace_back(name, (*this)[name]);
  }
  return fields;
}

Result<std::string> Field::type() const {
  if (missing() || !value_->is_object()) {
    return wrong("an object with a \"type\"");
  }
  return (*this)["type"].text();
}

Error Field::error(std::string_view what) const {
  return input_error(value_ == nullptr
                         ? fmt::format("{}: {}", path_, what)
                         : fmt::format("{}: {} (it is {})", path_, what, shown(*value_)));
}

Error Field::wrong(std::string_view wanted) const {
  return error(value_ == nullptr ? fmt::format("is missing; {} is needed", wanted)
                                 : fmt::format("must be {}", wanted));
}

Result<Document> read_document(std::string_view text, std::string_view name) {
  Document document;
  Collector collector(document);
  WEFT_ASSIGN(document.rest, parse_json(text, std::string(name),
                                        [&](int depth, json::parse_event_t event, json& value) {
                                          return collector(depth, event, value);
                                        }));
  if (!document.rest.is_object()) {
    return input_error(fmt::format("{}: a JSON object is needed", name));
  }
  return document;
}

}  // namespace weft::tokenizer
