# Finds what Tessera stands on; third_party/README.md says what each is for. ./run installs the
# packages on Debian and Ubuntu. Also included by the installed package's config file.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(dnnl CONFIG REQUIRED)
find_package(hwy CONFIG REQUIRED)
