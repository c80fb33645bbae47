#include "arch/cdna/device.h"

#include <gtest/gtest.h>

#include "arch/cdna/hip.h"

namespace weft::cdna {
namespace {

TEST(CdnaDevice, UnknownNamesAreUsage) {
  for (const char* id : {"sim", "sim:", "sim:gfx90a", "sim:gfx942*9", "sim:gfx942*0", "sim:gfx942*",
                         "sim:gfx942*2:2", "sim:gfx942:1", "sim:gfx942*2:-1",
                         "sim:gfx942*2:", "sim:gfx942*x", "hip:", "hip:x", "hip:-1", "hip:0x"}) {
    const auto device = open_device(id);
    ASSERT_FALSE(device.ok()) << id;
    EXPECT_EQ(device.error().kind, ErrorKind::usage) << id;
    EXPECT_NE(device.error().message.find(id), std::string::npos) << device.error().message;
  }
}

TEST(CdnaDevice, NamesOneOfANode) {
  EXPECT_EQ(node_named("gfx950"), (Node{Target::gfx950, 1, 0}));
  EXPECT_EQ(node_named("gfx942*8"), (Node{Target::gfx942, 8, 0}));
  EXPECT_EQ(node_named("gfx942*8:3"), (Node{Target::gfx942, 8, 3}));
}

TEST(CdnaDevice, WithoutRocmSaysSo) {
  if (hip_library().ok()) {
    GTEST_SKIP() << "ROCm is here";
  }
  const auto device = open_device("hip");
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().kind, ErrorKind::device);
  EXPECT_NE(device.error().message.find("libamdhip64.so"), std::string::npos);
}

TEST(CdnaDevice, ListsEachKindOrWhyItIsNotThere) {
  bool hip = false;
  int simulated = 0;
  for (const DeviceListing& listing : list_devices()) {
    hip |= listing.kind == "hip";
    simulated += listing.kind == "sim" ? 1 : 0;
    EXPECT_NE(listing.missing.empty(), listing.info.id.empty());
  }
  EXPECT_TRUE(hip);
  EXPECT_EQ(simulated, 2);
}

}  // namespace
}  // namespace weft::cdna
