#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "model/test_files.h"

namespace weft {
namespace {

/// A file of a header and this many bytes of data.
std::string file_of(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + std::string(header) + std::string(data_bytes, 'x');
}

std::string error_of(std::string_view file) {
  const auto result = parse_safetensors(std::as_bytes(std::span(file)), "m.safetensors");
  if (result.ok()) {
    return "accepted";
  }
  EXPECT_EQ(result.error().kind, ErrorKind::input);
  return result.error().message;
}

std::string error_of(std::string_view header, size_t data_bytes) {
  return error_of(file_of(header, data_bytes));
}

TEST(Safetensors, ReadsWhatItWrites) {
  const std::vector<SafetensorsEntry> tensors = {
      {.name = "a", .dtype = "F32", .shape = {2, 3}, .bytes = 24},
      {.name = "b \"quoted\"", .dtype = "BF16", .shape = {5}, .bytes = 10},
      {.name = "scalar", .dtype = "I64", .shape = {}, .bytes = 8},
      {.name = "empty", .dtype = "U8", .shape = {0, 7}, .bytes = 0}};
  const std::string header = make_safetensors_header(tensors);
  EXPECT_EQ(header.size() % 64, 0u);
  const std::string file = header + std::string(42, 'x');
  const auto read = parse_safetensors(std::as_bytes(std::span(file)), "m.safetensors");
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read->size(), 4u);
  uint64_t offset = header.size();
  for (size_t i = 0; i < 4; ++i) {
    // "empty" starts where the file ends, "scalar" before it: the order of bytes is kept.
    EXPECT_EQ((*read)[i].name, tensors[i].name);
    EXPECT_EQ((*read)[i].dtype, tensors[i].dtype);
    EXPECT_EQ((*read)[i].shape, tensors[i].shape);
    EXPECT_EQ((*read)[i].offset, offset);
    EXPECT_EQ((*read)[i].bytes, tensors[i].bytes);
    offset += tensors[i].bytes;
  }
}

TEST(Safetensors, HeaderLength) {
  EXPECT_EQ(error_of(""), "m.safetensors: is 0 bytes long, too short for a safetensors file");
  EXPECT_EQ(error_of("abcdefg"),
            "m.safetensors: is 7 bytes long, too short for a safetensors file");
  std::string file = file_of("{}", 0);
  EXPECT_EQ(error_of(file), "accepted");
  file[0] = 3;
  EXPECT_EQ(
      error_of(file),
      "m.safetensors: header length 3 is more than the 2 bytes that follow: the file is truncated");
  EXPECT_EQ(error_of(std::string(8, '\xff') + "{}"),
            "m.safetensors: header length 18446744073709551615 is more than the format's limit of "
            "100000000: this is not a safetensors file");
}

TEST(Safetensors, HeaderIsNotTheFormat) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not valid JSON at byte 1 of the header"},
      {"{\"a\"", "not valid JSON at byte 5 of the header"},
      {"{} {}", "not valid JSON at byte 4 of the header"},
      {"[]", "it must be an object of tensors, not a list"},
      {"3", "it must be an object of tensors, not the number 3"},
      {R"({"a": null})", R"(tensor "a" must be an object, not null)"},
      {R"({"a": [1]})", R"(tensor "a" must be an object, not a list)"},
      {R"({"a": {}})", R"(tensor "a": dtype is missing)"},
      {R"({"a": {"dtype": "F32"}})", R"(tensor "a": shape is missing)"},
      {R"({"a": {"dtype": "F32", "shape": []}})", R"(tensor "a": data_offsets is missing)"},
      {R"({"a": {"dtype": 3}})", R"(tensor "a": dtype must be a string, not the number 3)"},
      {R"({"a": {"dtype": "F32", "dtype": "F32"}})", R"(tensor "a": dtype is there twice)"},
      {R"({"a": {"shape": [], "shape": []}})", R"(tensor "a": shape is there twice)"},
      {R"({"a": {"kind": 1}})", R"(tensor "a": unknown key "kind")"},
      {R"({"a": {"shape": [-1]}})",
       R"(tensor "a": shape must be a list of non-negative integers, not the number -1)"},
      {R"({"a": {"shape": [1.5]}})",
       R"(tensor "a": shape must be a list of non-negative integers, not the number "1.5")"},
      {R"({"a": {"shape": [[1]]}})",
       R"(tensor "a": shape must be a list of non-negative integers, not a list)"},
      {R"({"a": {"shape": {}}})",
       R"(tensor "a": shape must be a list of non-negative integers, not an object)"},
      {R"({"a": {"shape": "1"}})",
       R"(tensor "a": shape must be a list of non-negative integers, not "1")"},
      {R"({"a": {"shape": [9223372036854775808]}})",
       R"(tensor "a": shape has a dimension of 9223372036854775808)"},
      {R"({"a": {"shape": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}})",
       R"(tensor "a": shape has more than 16 dimensions)"},
      {R"({"a": {"data_offsets": [1]}})", R"(tensor "a": data_offsets must be two numbers)"},
      {R"({"a": {"data_offsets": []}})", R"(tensor "a": data_offsets must be two numbers)"},
      {R"({"a": {"data_offsets": [0, 1, 2]}})",
       R"(tensor "a": data_offsets must be two non-negative integers, not the number 2)"},
      {R"({"a": {"data_offsets": [true]}})",
       R"(tensor "a": data_offsets must be two non-negative integers, not true or false)"},
      {R"({"__metadata__": 3})", "__metadata__ must be an object of strings, not the number 3"},
      {R"({"__metadata__": {"a": {}}})",
       "__metadata__ must be an object of strings, not an object"},
  };
  for (const auto& [header, problem] : cases) {
    EXPECT_EQ(error_of(header, 0), std::string("m.safetensors: header: ") + problem) << header;
  }
  const std::string deep = R"({"a":)" + std::string(1'000'000, '[');
  EXPECT_NE(error_of(deep, 0).find("must be an object"), std::string::npos);
  EXPECT_NE(error_of("{\"\xff\": 3}", 0).find("not valid JSON"), std::string::npos);
}

TEST(Safetensors, UnknownDType) {
  const std::string error =
      error_of(R"({"a": {"dtype": "F128", "shape": [1], "data_offsets": [0, 16]}})", 16);
  EXPECT_EQ(error.find("m.safetensors: header: tensor \"a\": dtype \"F128\" is none of BOOL F4 "),
            0u)
      << error;
}

TEST(Safetensors, RepeatedTensor) {
  EXPECT_EQ(error_of(R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                         "a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}})",
                     2),
            "m.safetensors: header: \"a\" is there twice");
}

TEST(Safetensors, Sizes) {
  EXPECT_EQ(error_of(R"({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 20]}})", 20),
            "m.safetensors: header: tensor \"a\": shape [2,3] of F32 takes 24 bytes, data_offsets "
            "[0, 20] hold 20");
  EXPECT_EQ(error_of(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", 4),
            "m.safetensors: header: tensor \"a\": data_offsets [4, 0] are reversed");
  // 2^32 * 2^32 * 32 bits would wrap around to nothing.
  EXPECT_EQ(error_of(R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296],
                               "data_offsets": [0, 0]}})",
                     0),
            "m.safetensors: header: tensor \"a\": shape [4294967296,4294967296] of F32 is no whole "
            "number of bytes below 2^64");
  EXPECT_NE(error_of(R"({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}})", 1)
                .find("no whole number of bytes"),
            std::string::npos);
  EXPECT_EQ(error_of(R"({"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}})", 2),
            "accepted");
}

TEST(Safetensors, Places) {
  EXPECT_EQ(error_of(R"({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}})", 7),
            "m.safetensors: tensor \"a\" ends at byte 8 of 7 bytes of data: the file is truncated");
  EXPECT_EQ(error_of(R"({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}})", 9),
            "m.safetensors: 1 bytes of data follow the last tensor");
  EXPECT_EQ(error_of(R"({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
                         "b": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]}})",
                     12),
            "m.safetensors: tensor \"b\" starts at byte 4 of the data, but the one before it ends "
            "at 8: they overlap");
  EXPECT_EQ(error_of(R"({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
                         "b": {"dtype": "U8", "shape": [8], "data_offsets": [9, 17]}})",
                     17),
            "m.safetensors: tensor \"b\" starts at byte 9 of the data, but the one before it ends "
            "at 8: they leave a hole");
  EXPECT_NE(error_of(R"({"a": {"dtype": "U8", "shape": [0],
                               "data_offsets": [18446744073709551615, 18446744073709551615]}})",
                     0)
                .find("the file is truncated"),
            std::string::npos);
}

TEST(Safetensors, OpensAFile) {
  TestDirectory directory;
  const auto path = directory.write(
      "m.safetensors", file_of(R"({"b": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                  "a": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]}})",
                               0) +
                           "xyz");
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_NE(file->find("a"), nullptr);
  EXPECT_EQ(static_cast<char>(*file->data(*file->find("a"))), 'z');
  EXPECT_EQ(static_cast<char>(*file->data(*file->find("b"))), 'x');
  EXPECT_EQ(file->find("c"), nullptr);
  EXPECT_EQ(file->find(""), nullptr);
}

TEST(Safetensors, NotAFile) {
  TestDirectory directory;
  for (const char* name : {"none", "."}) {
    const auto file = SafetensorsFile::open(directory.path() / name);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().message.find(directory.path().string()), 0u);
  }
  const auto pipe = directory.path() / "pipe";
  ASSERT_EQ(std::system(("mkfifo " + pipe.string()).c_str()), 0);
  const auto file = SafetensorsFile::open(pipe);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().message, pipe.string() + ": is not a regular file");
  const auto empty = SafetensorsFile::open(directory.write("empty", ""));
  ASSERT_FALSE(empty.ok());
  EXPECT_NE(empty.error().message.find("is 0 bytes long"), std::string::npos);
}

}  // namespace
}  // namespace weft
