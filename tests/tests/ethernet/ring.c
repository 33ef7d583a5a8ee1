/* A message goes around a ring of processes, and is still the same: small ones and large ones. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static char message[1 << 20];

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int round = 1; round <= 50; round++) {
        int length = round % 2 ? 64 : sizeof message;
        if (rank == 0) {
            memset(message, round, length);
            MPI_Send(message, length, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        }
        int from = (rank + size - 1) % size;
        MPI_Recv(message, length, MPI_CHAR, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < length; i++) {
            if (message[i] != (char)round) MPI_Abort(MPI_COMM_WORLD, 1);
        }
        if (rank != 0) {
            MPI_Send(message, length, MPI_CHAR, (rank + 1) % size, 0, MPI_COMM_WORLD);
        }
    }
    if (rank == 0) printf("around %d\n", size);
    MPI_Finalize();
}
