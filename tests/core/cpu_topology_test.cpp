#include "tessera/core/cpu_topology.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CpuListText, IsWhatTasksetAndNumactlWrite) {
  for (const char* text :
       {"0", "0-3", "0,2", "0-3,8-11", "0-6:2", "1,4-5", "0,8,17", "0-2,4-8:2"}) {
    EXPECT_EQ(to_string(parse_cpu_list(text)), text);
  }
  EXPECT_THAT(parse_cpu_list("9,0-2,1"), ElementsAre(0, 1, 2, 9));
  EXPECT_EQ(to_string(CpuList{}), "");
  for (const char* text : {"", "a", "0-", "-1", "3-1", "0,", "0;1", "0-4:0", "99999999", "0 1"}) {
    SCOPED_TRACE(text);
    EXPECT_THROW(parse_cpu_list(text), Error);
  }
}

TEST(CpuTopologyOf, ADescriptionHasItsCoresAndNodes) {
  const CpuTopology two = read_topology({.synthetic = "pack:2 [numa] core:2 pu:2"});
  ASSERT_EQ(two.cores.size(), 4U);
  EXPECT_EQ(to_string(two.cores[1].cpus), "2-3");
  EXPECT_EQ(two.cores[1].node, 0);
  EXPECT_EQ(two.cores[2].node, 1);
  EXPECT_THAT(two.nodes(), ElementsAre(0, 1));
  EXPECT_FALSE(two.of_this_machine);
  EXPECT_FALSE(two.partial);
  // Where no node is described there is one.
  EXPECT_THAT(read_topology({.synthetic = "pack:2 core:2 pu:1"}).nodes(), ElementsAre(0));
  EXPECT_THROW(read_topology({.synthetic = "nonsense"}), Error);
}

TEST(CpuTopologyOf, AMaskLeavesOutCoresAndHardwareThreads) {
  const CpuTopology two = read_topology({.synthetic = "pack:2 [numa] core:2 pu:2"});
  const CpuTopology part = within(two, {3, 4, 5});
  ASSERT_EQ(part.cores.size(), 2U);
  EXPECT_THAT(part.cores[0].cpus, ElementsAre(3));
  EXPECT_TRUE(part.partial);
  EXPECT_FALSE(within(two, parse_cpu_list("0-7")).partial);
}

/// As lstopo writes it: two packages, each with a core, a bridge and a GPU behind it; a third GPU
/// hangs on the machine itself.
std::string machine_with_gpus() {
  const auto package = [](const std::string& number, const std::string& set,
                          const std::string& bus) {
    const std::string sets = "cpuset=\"" + set + "\" complete_cpuset=\"" + set + "\" nodeset=\"" +
                             set + "\" complete_nodeset=\"" + set + "\"";
    const auto object = [&](const std::string& type) {
      return "<object type=\"" + type + "\" os_index=\"" + number + "\" " + sets + " gp_index=\"" +
             std::to_string(100 + 10 * std::stoi(number) + static_cast<int>(type.size())) + "\"";
    };
    return object("Package") + ">" + object("NUMANode") + "/>" + object("Core") + ">" +
           object("PU") + "/></object>" + "<object type=\"Bridge\" gp_index=\"5" + number +
           "\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[" + bus + "-" + bus + "]\">" +
           "<object type=\"PCIDev\" gp_index=\"6" + number + "\" pci_busid=\"0000:" + bus +
           ":00.0\" pci_type=\"0302 [10de:2330] [10de:16c1] a1\" pci_link_speed=\"0\"/>" +
           "</object></object>";
  };
  const std::string both =
      "cpuset=\"0x3\" complete_cpuset=\"0x3\" allowed_cpuset=\"0x3\" nodeset=\"0x3\" "
      "complete_nodeset=\"0x3\" allowed_nodeset=\"0x3\"";
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?><!DOCTYPE topology SYSTEM \"hwloc2.dtd\">"
         "<topology version=\"2.0\"><object type=\"Machine\" os_index=\"0\" gp_index=\"1\" " +
         both + ">" + package("0", "0x1", "1b") + package("1", "0x2", "9c") +
         "<object type=\"Bridge\" gp_index=\"70\" bridge_type=\"0-1\" depth=\"0\" "
         "bridge_pci=\"0000:[c0-c0]\"><object type=\"PCIDev\" gp_index=\"71\" "
         "pci_busid=\"0000:c0:00.0\" pci_type=\"0302 [10de:2330] [10de:16c1] a1\" "
         "pci_link_speed=\"0\"/></object></object></topology>";
}

TEST(CpuTopologyOf, AFileKnowsTheNodesOfGpus) {
  const CpuTopology machine = read_topology({.devices = true, .xml = machine_with_gpus()});
  EXPECT_THAT(machine.nodes(), ElementsAre(0, 1));
  EXPECT_EQ(machine.node_of_device("0000:1b:00.0"), 0);
  EXPECT_EQ(machine.node_of_device("0000:9C:00.0"), 1) << "CUDA writes capitals";
  EXPECT_EQ(machine.node_of_device("0000:c0:00.0"), -1) << "it is near to both";
  EXPECT_EQ(machine.node_of_device("0000:ff:00.0"), -1);
  EXPECT_TRUE(read_topology({.xml = machine_with_gpus()}).device_nodes.empty());
  EXPECT_THROW(read_topology({.xml = "<nonsense/>"}), Error);
}

TEST(CpuTopologyOf, ThisMachineHasTheCoresOfThisThread) {
  const CpuTopology machine = read_topology();
  CpuList all;
  for (const Core& core : machine.cores) all.insert(all.end(), core.cpus.begin(), core.cpus.end());
  std::ranges::sort(all);
  const CpuList own = cpus_of_thread();
  EXPECT_TRUE(std::ranges::includes(all, own)) << to_string(all) << " without " << to_string(own);
}

TEST(BindThread, HoldsForItAndForWhatItStarts) {
  const CpuList all = cpus_of_thread();
  CpuList bound;
  CpuList inherited;
  std::thread([&] {
    bind_thread({all.back()});
    bound = cpus_of_thread();
    std::thread([&] { inherited = cpus_of_thread(); }).join();
  }).join();
  EXPECT_THAT(bound, ElementsAre(all.back()));
  EXPECT_EQ(inherited, bound);
  EXPECT_EQ(cpus_of_thread(), all);
  EXPECT_THROW(bind_thread({}), Error);
  try {
    bind_thread({60000});
    FAIL() << "there is no such CPU";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot bind a thread to CPUs 60000: "));
  }
}

/// The child is this program anew: OpenMP reads its variables as it is loaded.
TEST(UsableCpus, AreThoseFromBeforeOpenMpBoundThisThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string all = to_string(cpus_of_thread());
  for (const char* const variable : {"OMP_PROC_BIND=close", "OMP_PLACES=threads", "OMP_NESTED=0"}) {
    const std::string text = variable;
    const std::string name = text.substr(0, text.find('='));
    setenv(name.c_str(), text.substr(name.size() + 1).c_str(), 1);
    EXPECT_EXIT(
        {
          const bool bound = cpus_of_thread().size() == 1;
          bind_thread(usable_cpus());
          std::cerr << (bound ? "bound, " : "free, ") << to_string(cpus_of_thread()) << "\n";
          std::exit(0);
        },
        ::testing::ExitedWithCode(0), (name == "OMP_NESTED" ? "" : "bound, ") + all)
        << variable;
    unsetenv(name.c_str());
  }
}

}  // namespace
}  // namespace tessera
