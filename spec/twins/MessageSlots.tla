---------------------------- MODULE MessageSlots ----------------------------
(***************************************************************************)
(* Message slots: the same protocol as spec/models/message_slots.py, action *)
(* for action and under the same names.  A generation is one bit here too:  *)
(* a reference is a pair <<phase, current>>, and Claim makes every earlier  *)
(* reference to the slot stale.                                             *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Slots,          \* the set of slots
    Readers,        \* the set of readers
    Tensors,        \* in one message, at most
    QueueLength,    \* messages in one reader's queue, at most
    WithLeave,      \* a reader may leave and live on
    WithQuarantine  \* a dead reader's DMA may outlive the death signal

VARIABLES
    writer,      \* "idle", "copy", "publish" or "dead"
    current,     \* the slot being filled, in a set of at most one
    pending,     \* published slots of the message that is not out yet
    owner,       \* per slot: "free", "claimed" or "published"
    complete,    \* per slot: the payload is there
    done,        \* per slot: the readers whose done word equals the generation
    required,    \* per slot: the readers that have to release it
    alive,       \* the readers whose process lives
    member,      \* per reader: "empty", "joined", "leaving" or "left"
    ref,         \* per reader and slot: <<phase, current>>
    queue,       \* per reader: messages, each a sequence of <<slot, current>>
    quarantine,  \* per reader: slots that it owed when it died
    orphan       \* per reader and slot: DMA of a dead process, <<phase, current>>

vars == <<writer, current, pending, owner, complete, done, required, alive, member, ref, queue, quarantine, orphan>>

Symmetry == Permutations(Slots) \union Permutations(Readers)

Unused == <<"-", FALSE>>
InView(r) == member[r] \in {"joined", "leaving"}
Range(sequence) == {sequence[i] : i \in DOMAIN sequence}

Free(s) ==
    \/ owner[s] = "free"
    \/ /\ owner[s] = "published"
       /\ s \notin Range(pending)
       /\ \A r \in Readers : s \notin quarantine[r]
       /\ required[s] \subseteq done[s]

Init ==
    /\ writer = "idle" /\ current = {} /\ pending = <<>>
    /\ owner = [s \in Slots |-> "free"] /\ complete = [s \in Slots |-> FALSE]
    /\ done = [s \in Slots |-> {}] /\ required = [s \in Slots |-> {}]
    /\ alive = Readers /\ member = [r \in Readers |-> "joined"]
    /\ ref = [r \in Readers |-> [s \in Slots |-> Unused]]
    /\ queue = [r \in Readers |-> <<>>]
    /\ quarantine = [r \in Readers |-> {}]
    /\ orphan = [r \in Readers |-> [s \in Slots |-> Unused]]

(* ---- the writer ---- *)

Stale(row, s) == [row EXCEPT ![s] = <<@[1], FALSE>>]
Outdated(message, s) == [i \in DOMAIN message |-> IF message[i][1] = s THEN <<s, FALSE>> ELSE message[i]]

Claim(s) ==
    /\ writer = "idle" /\ Len(pending) < Tensors /\ Free(s)
    /\ writer' = "copy" /\ current' = {s}
    /\ owner' = [owner EXCEPT ![s] = "claimed"] /\ complete' = [complete EXCEPT ![s] = FALSE]
    /\ done' = [done EXCEPT ![s] = {}] /\ required' = [required EXCEPT ![s] = {}]
    /\ ref' = [r \in Readers |-> Stale(ref[r], s)]
    /\ orphan' = [r \in Readers |-> Stale(orphan[r], s)]
    /\ queue' = [r \in Readers |-> [i \in DOMAIN queue[r] |-> Outdated(queue[r][i], s)]]
    /\ UNCHANGED <<pending, alive, member, quarantine>>

Copy ==
    /\ writer = "copy" /\ writer' = "publish"
    /\ complete' = [s \in Slots |-> complete[s] \/ s \in current]
    /\ UNCHANGED <<current, pending, owner, done, required, alive, member, ref, queue, quarantine, orphan>>

Publish == \E s \in current :
    /\ writer = "publish" /\ writer' = "idle" /\ current' = {}
    /\ owner' = [owner EXCEPT ![s] = "published"]
    /\ required' = [required EXCEPT ![s] = {r \in Readers : InView(r)}]
    /\ pending' = Append(pending, s)
    /\ UNCHANGED <<complete, done, alive, member, ref, queue, quarantine, orphan>>

Enqueue ==
    /\ writer = "idle" /\ pending # <<>>
    /\ \A r \in Readers : InView(r) => Len(queue[r]) < QueueLength
    /\ LET message == [i \in DOMAIN pending |-> <<pending[i], TRUE>>]
       IN queue' = [r \in Readers |-> IF InView(r) THEN Append(queue[r], message) ELSE queue[r]]
    /\ pending' = <<>>
    /\ UNCHANGED <<writer, current, owner, complete, done, required, alive, member, ref, quarantine, orphan>>

Abort ==
    /\ writer # "dead" /\ <<pending, current>> # <<<<>>, {}>>
    /\ LET given == Range(pending) \union current IN
       /\ owner' = [s \in Slots |-> IF s \in given THEN "free" ELSE owner[s]]
       /\ complete' = [s \in Slots |-> s \notin given /\ complete[s]]
       /\ done' = [s \in Slots |-> IF s \in given THEN {} ELSE done[s]]
       /\ required' = [s \in Slots |-> IF s \in given THEN {} ELSE required[s]]
    /\ writer' = "idle" /\ current' = {} /\ pending' = <<>>
    /\ UNCHANGED <<alive, member, ref, queue, quarantine, orphan>>

Owed(r) == {s \in Slots : owner[s] = "published" /\ s \notin Range(pending) /\ r \in required[s] \ done[s]}

Reclaim(r) ==
    /\ writer # "dead" /\ member[r] # "empty" /\ r \notin alive
    /\ \A s \in Slots : ref[r][s][1] # "dma"
    /\ member' = [member EXCEPT ![r] = "empty"]
    /\ required' = [s \in Slots |-> required[s] \ {r}]
    /\ queue' = [queue EXCEPT ![r] = <<>>]
    /\ quarantine' = IF WithQuarantine THEN [quarantine EXCEPT ![r] = @ \union Owed(r)] ELSE quarantine
    /\ UNCHANGED <<writer, current, pending, owner, complete, done, alive, ref, orphan>>

Expire(r, s) ==
    /\ writer # "dead" /\ s \in quarantine[r] /\ orphan[r][s] = Unused
    /\ quarantine' = [quarantine EXCEPT ![r] = @ \ {s}]
    /\ UNCHANGED <<writer, current, pending, owner, complete, done, required, alive, member, ref, queue, orphan>>

Admit(r) ==
    /\ writer = "idle" /\ pending = <<>>
    /\ member[r] = "empty" /\ r \notin alive /\ \A s \in Slots : ref[r][s] = Unused
    /\ alive' = alive \union {r} /\ member' = [member EXCEPT ![r] = "joined"]
    /\ UNCHANGED <<writer, current, pending, owner, complete, done, required, ref, queue, quarantine, orphan>>

DropReader(r) ==
    /\ member[r] = "leaving" /\ writer = "idle" /\ pending = <<>>
    /\ LET unread == {s \in Slots : \E i \in DOMAIN queue[r] : <<s, TRUE>> \in Range(queue[r][i])}
       IN required' = [s \in Slots |-> IF s \in unread THEN required[s] \ {r} ELSE required[s]]
    /\ member' = [member EXCEPT ![r] = "left"] /\ queue' = [queue EXCEPT ![r] = <<>>]
    /\ UNCHANGED <<writer, current, pending, owner, complete, done, alive, ref, quarantine, orphan>>

WriterDeath ==
    /\ writer # "dead" /\ writer' = "dead" /\ current' = {} /\ pending' = <<>>
    /\ UNCHANGED <<owner, complete, done, required, alive, member, ref, queue, quarantine, orphan>>

(* ---- the readers and the device ---- *)

Private == UNCHANGED <<writer, current, pending, owner, complete, required, alive, member, queue, quarantine, orphan>>

Receive(r) ==
    /\ r \in alive /\ member[r] \in {"empty", "joined"} /\ queue[r] # <<>>
    /\ LET message == Head(queue[r]) IN
       /\ \A i \in DOMAIN message : ref[r][message[i][1]] = Unused
       /\ ref' = [ref EXCEPT ![r] = [s \in Slots |->
                    IF \E i \in DOMAIN message : message[i][1] = s
                    THEN <<"received", \E i \in DOMAIN message : message[i] = <<s, TRUE>> >>
                    ELSE @[s]]]
    /\ queue' = [queue EXCEPT ![r] = Tail(@)]
    /\ UNCHANGED <<writer, current, pending, owner, complete, done, required, alive, member, quarantine, orphan>>

Lease(r, s) ==
    /\ r \in alive /\ ref[r][s] = <<"received", TRUE>>
    /\ ref' = [ref EXCEPT ![r][s] = <<"leased", TRUE>>]
    /\ Private /\ UNCHANGED done

Discard(r, s) ==
    /\ r \in alive /\ ref[r][s] = <<"received", FALSE>>
    /\ ref' = [ref EXCEPT ![r][s] = Unused]
    /\ Private /\ UNCHANGED done

Drop(r, s) ==
    /\ r \in alive /\ ref[r][s][1] = "leased"
    /\ \E phase \in {"dropped", "dma"} : ref' = [ref EXCEPT ![r][s] = <<phase, @[2]>>]
    /\ Private /\ UNCHANGED done

DmaComplete(r, s) ==
    /\ ref[r][s][1] = "dma"
    /\ ref' = [ref EXCEPT ![r][s] = IF r \in alive THEN <<"dropped", @[2]>> ELSE Unused]
    /\ Private /\ UNCHANGED done

OrphanDmaComplete(r, s) ==
    /\ orphan[r][s] # Unused
    /\ orphan' = [orphan EXCEPT ![r][s] = Unused]
    /\ UNCHANGED <<writer, current, pending, owner, complete, done, required, alive, member, ref, queue, quarantine>>

Release(r, s) ==
    /\ r \in alive /\ ref[r][s][1] = "dropped"
    /\ done' = [done EXCEPT ![s] = IF ref[r][s][2] THEN @ \union {r} ELSE @ \ {r}]
    /\ ref' = [ref EXCEPT ![r][s] = Unused]
    /\ Private

Leave(r) ==
    /\ r \in alive /\ member[r] = "joined" /\ \A s \in Slots : ref[r][s][1] # "received"
    /\ member' = [member EXCEPT ![r] = "leaving"]
    /\ UNCHANGED <<writer, current, pending, owner, complete, done, required, alive, ref, queue, quarantine, orphan>>

ReaderDeath(r) ==
    /\ r \in alive /\ alive' = alive \ {r}
    /\ LET running(s) == ref[r][s][1] = "dma" IN
       IF WithQuarantine
       THEN /\ ref' = [ref EXCEPT ![r] = [s \in Slots |-> Unused]]
            /\ orphan' = [orphan EXCEPT ![r] = [s \in Slots |-> IF running(s) THEN ref[r][s] ELSE @[s]]]
       ELSE /\ ref' = [ref EXCEPT ![r] = [s \in Slots |-> IF running(s) THEN @[s] ELSE Unused]]
            /\ UNCHANGED orphan
    /\ UNCHANGED <<writer, current, pending, owner, complete, done, required, member, queue, quarantine>>

Next ==
    \/ Copy \/ Publish \/ Enqueue \/ Abort \/ WriterDeath
    \/ \E s \in Slots : Claim(s)
    \/ \E r \in Readers : Reclaim(r) \/ Admit(r) \/ Receive(r) \/ ReaderDeath(r)
    \/ \E r \in Readers, s \in Slots :
          Lease(r, s) \/ Discard(r, s) \/ Drop(r, s) \/ DmaComplete(r, s) \/ Release(r, s)
    \/ WithLeave /\ \E r \in Readers : Leave(r) \/ DropReader(r)
    \/ WithQuarantine /\ \E r \in Readers, s \in Slots : Expire(r, s) \/ OrphanDmaComplete(r, s)

Spec == Init /\ [][Next]_vars

(* ---- what must hold ---- *)

InUse(reference) == reference[1] \in {"leased", "dma"}

S1 == \A r \in Readers, s \in Slots : \A reference \in {ref[r][s], orphan[r][s]} : InUse(reference) => reference[2]

S2 == \A r \in Readers, s \in Slots : InUse(ref[r][s]) => complete[s] /\ owner[s] = "published"

S3 == Cardinality(Range(pending)) = Len(pending)

Quiet ==
    /\ writer = "idle" /\ pending = <<>>
    /\ \A r \in Readers :
       /\ \A s \in Slots : ref[r][s] = Unused /\ orphan[r][s] = Unused
       /\ quarantine[r] = {}
       /\ member[r] = "joined" => queue[r] = <<>>
       /\ (r \in alive) = (member[r] # "empty")
       /\ member[r] # "leaving"

S4 == Quiet => \A s \in Slots : Free(s)
=============================================================================
